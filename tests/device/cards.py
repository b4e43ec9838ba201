"""A folder of nodes like /dev/rngd, processes that hold one, and a /proc that is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# What the vendor's device plugin gives a container for one card (its Kubernetes library, public).
NODES = ("mgmt", "dmar", "ch0", "ch7", "ch0r", *(f"pe{i}" for i in range(8)), "pe0-1", "pe2-3", "pe0-3", "pe4-7")
PLAIN = "7 (a (b) c) S 1 7 7 0 -1 4194560 0 0 0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "rngd"
    folder.mkdir()
    return folder


def give(root: Path, *numbers: int) -> None:
    for number in numbers:
        for node in NODES:
            (root / f"npu{number}{node}").touch()


@contextmanager
def process_with(path: Path, code: str) -> Iterator[int]:
    """A process that runs `code` with `path` in argv, says so, and waits."""
    command = [sys.executable, "-c", f"import mmap, os, sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()"]
    with subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


def made_process(proc: Path, pid: int, *, open_paths: tuple[str, ...] = ()) -> None:
    """Of one thread, whose files are where those of the process are."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(PLAIN)
    (folder / "comm").write_text("made\n")
    (folder / "maps").write_text("")
    for i, path in enumerate(open_paths):
        (folder / "fd" / str(i)).symlink_to(path)
    (folder / "task").mkdir()
    (folder / "task" / str(pid)).symlink_to(folder)
