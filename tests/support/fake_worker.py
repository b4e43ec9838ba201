"""A worker whose compiler is made up: what it does with a graph is in the graph's constants. Needs no torch.

    {"secs": 3}            takes that long to compile, in steps of 10 ms
    {"signal": "SEGV"}     sends itself that signal
    {"exit": 3}            ends with that exit code
    {"eat_bytes": N}       holds N bytes more while it compiles
    {"error": "text"}      the compiler refuses the graph
    {"passing": "text"}    the compiler fails for a reason of the machine's
    {"half": true}         the compiler ends well and has written half a file
    {"print": "text"}      prints, as native code does, to file descriptor 1
    {"loses": "path"}      its folder is deleted, and the compile fails, as long as the file at `path` is not there;
                           with {"again": true} each time
    {"spoils": "text"}     its export changes the process, so that no other one can be done in it
    {"verdict": "disproven"}  what a proof says; `proven` by default
    {"products": N}        what one call multiplies, by which a proof's cost is told
    {"program": "x"}       exports to the same program as every other graph with "x"

A line is appended to the file in FAKE_COMPILES at each start of a compile; with FAKE_CANNOT_START it does not start.
A worker gets none of the environment, so `with_variables` sets them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from graphcache.build.worker import die_with, parse, serve
from graphcache.digest import json_sha256
from graphcache.errors import GraphcacheError, SpoiledError
from graphcache.graph import Graph, TensorSpec
from graphcache.process.helper import helper_command, take_stdout
from graphcache.proof.cost import Work
from graphcache.proof.verdict import Verdict
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.toolchain.base import Compiled, CompileError
from tests.store.fakes import fake_verdict
from tests.support.machine_texts import FOLDER_GONE

REVISION = "fake-revision"
COMMAND = helper_command("tests.support.fake_worker")


def with_variables(**variables: object) -> tuple[str, ...]:
    """The worker's command line, with environment variables."""
    return ("env", *(f"{name}={value}" for name, value in variables.items()), *COMMAND)


class FakeHalfWrittenError(GraphcacheError):
    name = "half-written"


class FakeGraphCompiler:
    """Its bytes are a function of program and settings, as a compiler's should be."""

    revision = REVISION

    def export(self, graph: Graph) -> tuple[str, Sequence[TensorSpec]]:
        self._graph = graph
        if "spoils" in graph.constants:
            raise SpoiledError(str(graph.constants["spoils"]))
        if graph.constants.get("export_error"):
            raise CompileError(str(graph.constants["export_error"]))
        return fake_program(graph), graph.args[:1]

    @property
    def settings(self) -> Mapping[str, str]:
        return self._graph.with_recommended(self._graph.constants.get("recommended", {})).settings or {}

    def compile_exported(self) -> Compiled:
        graph = self._graph
        if "FAKE_COMPILES" in os.environ:
            with Path(os.environ["FAKE_COMPILES"]).open("a") as file:
                file.write(graph.name + "\n")
        _misbehave(dict(graph.constants))
        seed = json_sha256([fake_program(graph), dict(self.settings)]).encode()
        return Compiled(b"runnable " + seed * 100, b"dfg " + seed * 20, 1000 + graph.args[0].elements)

    def work(self, graph: Graph) -> Work:
        return Work(int(str(graph.constants.get("products", 0))), 0)

    def prove(self, store: LocalStore, entry: Entry) -> Verdict:
        store.open(entry)
        constants = dict(entry.graph.constants)
        _misbehave({name.removeprefix("prove_"): v for name, v in constants.items() if name.startswith("prove_")})
        state = constants.get("verdict", "proven")
        return replace(fake_verdict(entry, state), reason="" if state == "proven" else "made up", ran="fake", secs=0.1)


def _misbehave(constants: dict[str, object]) -> None:
    if "print" in constants:
        os.write(1, f"{constants['print']}\n".encode())
    held = b"x" * int(str(constants.get("eat_bytes", 0)))
    until = time.monotonic() + float(str(constants.get("secs", 0)))
    while time.monotonic() < until:
        time.sleep(0.01)
    del held
    if "signal" in constants:
        os.kill(os.getpid(), signal.Signals[f"SIG{constants['signal']}"])
    if "exit" in constants:
        os._exit(int(str(constants["exit"])))
    if "error" in constants:
        raise CompileError(str(constants["error"]))
    if "passing" in constants:
        raise OSError(28, str(constants["passing"]))
    if "loses" in constants:
        _lose_folder(Path(str(constants["loses"])), bool(constants.get("again")))
    if constants.get("half"):
        raise FakeHalfWrittenError("the compiler wrote a runnable of 7 bytes that the runtime cannot read")


def _lose_folder(seen: Path, again: bool) -> None:
    """As a cleaner of temporary files takes it: once, or each time."""
    if seen.exists() and not again:
        return
    seen.touch()
    shutil.rmtree(Path(os.environ["TMPDIR"]).parents[1 if again else 0], ignore_errors=True)
    raise CompileError(FOLDER_GONE)


def fake_program(graph: Graph) -> str:
    return json_sha256(graph.constants.get("program", [graph.function, graph.signature()]))


def main() -> None:
    options = parse(sys.argv[1:])
    die_with(options.parent)
    answers = take_stdout()
    if os.environ.get("FAKE_CANNOT_START"):
        sys.exit("librenegade.so: cannot open shared object file")
    serve(FakeGraphCompiler(), sys.stdin, answers)


if __name__ == "__main__":
    main()
