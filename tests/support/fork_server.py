"""Processes to be killed, forked from one that has imported torch already: no storm waits for imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_ENDED = "ended "


class ForkServer:
    """Runs one function at a time in a process of its own. What it prints is read line by line."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def start(self, target: str, *args: str) -> int:
        """Call `module:function` with strings; the pid."""
        self._process.stdin.write(json.dumps([target, *args]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def readline(self) -> str:
        return self._process.stdout.readline()

    def lines(self) -> Iterator[str]:
        """What it still prints, until it has ended."""
        for line in self._process.stdout:
            if line.startswith(_ENDED):
                return
            yield line


@contextmanager
def fork_server(*modules: str) -> Iterator[ForkServer]:
    """`modules` are imported before the first fork."""
    command = [sys.executable, "-m", "tests.support.fork_server", *modules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield ForkServer(process)
        finally:
            process.stdin.close()


def _serve(modules: list[str]) -> None:
    for module in modules:
        import_module(module)
    for line in sys.stdin:
        target, *args = json.loads(line)
        if (child := os.fork()) == 0:
            _call(target, args)
        _, status = os.waitpid(child, 0)
        print(f"{_ENDED}{status}", flush=True)


def _call(target: str, args: list[str]) -> None:
    print(os.getpid(), flush=True)
    module, _, function = target.partition(":")
    try:
        getattr(import_module(module), function)(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1:])
