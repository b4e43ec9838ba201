"""Which cards this process was given, and who holds them: read from device nodes and /proc, never by opening one.

The library cannot be asked: it lists 64 devices on a machine without a card. Nodes keep the host's numbers, so a pod
with two cards may see 1 and 3. A card is several nodes (`npu1mgmt`, `npu1pe0-3`, `npu1ch0`, ...), or in some containers
one file or folder `npu1`.

'Cannot tell' is an answer of its own, `CannotTellError`, and its callers refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphcache.errors import GraphcacheError

PROC = Path("/proc")
_NODE = re.compile(r"npu(\d+)([a-z][a-z0-9-]*)?")
_DELETED = " (deleted)"
# include/linux/sched.h: a thread of the kernel's own, which has no files.
_PF_KTHREAD = 0x00200000


class CannotTellError(GraphcacheError):
    """Whether a card can be taken cannot be told, so it is not."""

    name = "cannot-tell"


@dataclass(frozen=True)
class AssignedCard:
    """A card by the number of its nodes, and their names."""

    number: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Holder:
    """A process that has a card's node open or mapped."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def assigned_cards(root: Path) -> tuple[AssignedCard, ...]:
    """Cards that have nodes under `root`, in order of their numbers. None when there is no such folder.

    Raises CannotTellError when the folder cannot be read, or a name looks like a node's and is not one: a reader that
    stripped all but digits once made card 13 of `npu1,npu3`.
    """
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CannotTellError(f"cannot tell which cards are assigned: {root}: {error.strerror}") from error
    nodes: dict[int, list[str]] = {}
    for name in names:
        number = card_number(name)
        if number is not None:
            nodes.setdefault(number, []).append(name)
        elif name.startswith("npu"):
            raise CannotTellError(f"cannot tell which card {root / name} belongs to")
    return tuple(AssignedCard(number, tuple(nodes[number])) for number in sorted(nodes))


def card_number(node: str) -> int | None:
    """3 for `npu3`, `npu3pe0-3` and `npu3mgmt`; None for a name that is no node's, as `npu1,npu3`."""
    match = _NODE.fullmatch(node)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Look:
    """held: who holds a card, by its number; unreadable: processes whose files may not be seen, so perhaps more."""

    held: dict[int, list[Holder]]
    unreadable: list[Holder]


def look_for_holders(root: Path, proc: Path = PROC) -> Look:
    """Other processes that hold a node under `root`. Raises CannotTellError when /proc hides processes."""
    _check_visible(proc)
    look = Look({}, [])
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        folder = proc / str(pid)
        if pid == os.getpid() or _is_kernel_thread(folder):
            continue
        holder = Holder(pid, _command(folder))
        try:
            for number in set(_held(folder, root)):
                look.held.setdefault(number, []).append(holder)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except PermissionError:
            look.unreadable.append(holder)
    return look


def _check_visible(proc: Path) -> None:
    """That /proc shows the processes of other users too."""
    if os.geteuid() == 0:
        return
    try:
        mounts = (proc / "self/mounts").read_text().splitlines()
    except OSError as error:
        raise CannotTellError(f"cannot tell whether a card is held: {proc}: {error.strerror}") from error
    for line in mounts:
        _, place, kind, options, *_ = line.split(" ")
        hidden = re.search(r"hidepid=(\w+)", options)
        if kind == "proc" and place == str(proc) and hidden and hidden[1] not in ("0", "off"):
            raise CannotTellError(f"cannot tell whether a card is held: {proc} is mounted with {hidden[0]}")


def _is_kernel_thread(process: Path) -> bool:
    try:
        # The name, in parentheses, may hold anything; flags are the seventh field after it.
        return bool(int((process / "stat").read_text().rpartition(")")[2].split()[6]) & _PF_KTHREAD)
    except (OSError, ValueError, IndexError):
        return False


def _held(process: Path, root: Path) -> Iterator[int]:
    """Numbers of the cards that a process has open or mapped. Raises OSError."""
    folders = {f"{root}/", f"{os.path.realpath(root)}/"}
    for path in _open_paths(process):
        for folder in folders:
            number = card_number(path.removeprefix(folder).partition("/")[0]) if path.startswith(folder) else None
            if number is not None:
                yield number


def _open_paths(process: Path) -> Iterator[str]:
    for descriptor in os.listdir(process / "fd"):
        try:
            yield os.readlink(process / "fd" / descriptor).removesuffix(_DELETED)
        except FileNotFoundError:
            continue  # closed meanwhile
    # A mapped node stays held when its file is closed.
    for line in (process / "maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield fields[5].removesuffix(_DELETED)


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "unknown"
