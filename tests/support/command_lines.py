"""What everyone on a machine can read of running processes: their command lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def below(process: int) -> Iterator[int]:
    """A process, its children, and theirs; those that end meanwhile may be left out."""
    todo = [process]
    while todo:
        yield todo[-1]
        todo += children(todo.pop())


def children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path("/proc", str(process), "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def command_lines_below(process: int) -> set[bytes]:
    found = set()
    for each in below(process):
        try:
            found.add(Path("/proc", str(each), "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
