"""Which cards this process was given, and who holds them: read from device nodes and /proc, never by opening one.

The library cannot be asked: it lists 64 devices on a machine without a card. Nodes keep the host's numbers, so a pod
with two cards may see 1 and 3. A card is several nodes (`npu1mgmt`, `npu1pe0-3`, `npu1ch0`, ...), or in some containers
one file or folder `npu1`.

'Cannot tell' is an answer of its own, `CannotTellError`, and its callers refuse.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from graphcache.errors import GraphcacheError

PROC = Path("/proc")
_NODE = re.compile(r"npu(\d+)([a-z][a-z0-9-]*)?")
_DELETED = " (deleted)"
# include/linux/sched.h: a thread of the kernel's own, which has no files.
_PF_KTHREAD = 0x00200000
# A file by what it is, whatever its name: (kind, 0, number) of a device, else (0, file system, inode).
Identity = tuple[int, int, int]
T = TypeVar("T")


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
    """Other processes that hold a node under `root`, under any name.

    Raises CannotTellError when /proc hides processes, or a node cannot be looked at.
    """
    _check_visible(proc)
    nodes = _Nodes.under(root)
    look = Look({}, [])
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        folder = proc / str(pid)
        if pid == os.getpid() or _is_kernel_thread(folder):
            continue
        holder = Holder(pid, _command(folder))
        try:
            for number in set(_held(folder, nodes)):
                look.held.setdefault(number, []).append(holder)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except OSError:
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
        return bool(int(_stat(process)[6]) & _PF_KTHREAD)
    except (OSError, ValueError, IndexError):
        return False


def _has_ended(thread: Path) -> bool:
    """Whether a thread is one that only waits to be waited for, or is gone."""
    try:
        return _stat(thread)[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _stat(process: Path) -> list[str]:
    """The fields of /proc/*/stat from the state on: those before it are the number and, in parentheses, any name."""
    return (process / "stat").read_text(errors="surrogateescape").rpartition(")")[2].split()


@dataclass(frozen=True)
class _Nodes:
    """Numbers of the cards that nodes belong to, by what may be known of an open file.

    folders: where nodes are, each with its `/`; for nodes that were deleted, and nodes of other containers
    files:   by the file itself, which has other names where a node is a link, or was made twice
    mapped:  by device and inode as /proc/*/maps has them, `00:1a 77`
    """

    folders: tuple[str, ...]
    files: dict[Identity, int]
    mapped: dict[str, int]

    @classmethod
    def under(cls, root: Path) -> _Nodes:
        """Raises CannotTellError."""
        found = cls((f"{root}/", f"{os.path.realpath(root)}/"), {}, {})
        for number, node in ((card.number, root / name) for card in assigned_cards(root) for name in card.nodes):
            try:
                for path in _files(node):
                    found._add(number, path.stat())
            except OSError as error:
                raise CannotTellError(f"cannot tell whether a card is held: {node}: {error.strerror}") from error
        return found

    def _add(self, number: int, status: os.stat_result) -> None:
        self.files[_identity(status)] = number
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        self.mapped[f"{device} {status.st_ino}"] = number

    def by_path(self, path: str) -> int | None:
        for folder in self.folders:
            number = card_number(path.removeprefix(folder).partition("/")[0]) if path.startswith(folder) else None
            if number is not None:
                return number
        return None


def _files(node: Path) -> Iterator[Path]:
    """A node, and all that is in it where it is a folder. Raises OSError."""
    yield node
    if node.is_dir():
        for inside in node.iterdir():
            yield from _files(inside)


def _identity(status: os.stat_result) -> Identity:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return stat.S_IFMT(status.st_mode), 0, status.st_rdev
    return 0, status.st_dev, status.st_ino


def _held(process: Path, nodes: _Nodes) -> Iterator[int]:
    """Numbers of the cards that a process has open or mapped. Raises OSError."""
    for found in _each_thread(process, lambda thread: list(_open_nodes(thread, nodes))):
        yield from found
    # A mapped node stays held when its file is closed. Threads share their memory; one that has ended shows none.
    maps = _each_thread(process, lambda thread: (thread / "maps").read_text(errors="surrogateescape"))
    for line in next(filter(None, maps), "").splitlines():
        _, _, _, device, inode, *path = line.split(maxsplit=5)
        number = nodes.mapped.get(f"{device} {inode}")
        if number is None and path:
            number = nodes.by_path(path[0].removesuffix(_DELETED))
        if number is not None:
            yield number


def _each_thread(process: Path, read: Callable[[Path], T]) -> Iterator[T]:
    """What `read` gives for each thread that has not ended. Raises OSError.

    The first thread may have ended while others live, and each may have a table of open files of its own.
    """
    for name in os.listdir(process / "task"):
        thread = process / "task" / name
        try:
            yield read(thread)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except PermissionError:
            # Of a thread that has ended nobody but root may see that it has nothing open.
            if not _has_ended(thread):
                raise


def _open_nodes(thread: Path, nodes: _Nodes) -> Iterator[int]:
    for descriptor in os.listdir(thread / "fd"):
        link = thread / "fd" / descriptor
        try:
            number = nodes.by_path(os.readlink(link).removesuffix(_DELETED))
            if number is None:
                number = nodes.files.get(_identity(link.stat()))
        except FileNotFoundError:
            continue  # closed meanwhile
        if number is not None:
            yield number


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"
