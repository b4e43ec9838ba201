"""Who holds a card: processes that have a node of it open or mapped, read from /proc, never by opening a node.

Nodes are told by their paths. What cannot be read counts as held: it is `Look.unreadable`, or a CannotTellError.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from graphcache.device.nodes import CannotTellError, card_number

PROC = Path("/proc")
_DELETED = " (deleted)"
# include/linux/sched.h: a thread of the kernel's own, which has no files.
_PF_KTHREAD = 0x00200000


@dataclass(frozen=True)
class Holder:
    """A process that has a card's node open or mapped."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


@dataclass(frozen=True)
class Look:
    """held: who holds a card, by its number; unreadable: processes whose files may not be seen, so perhaps more."""

    held: dict[int, list[Holder]]
    unreadable: list[Holder]


def look_for_holders(root: Path, proc: Path = PROC) -> Look:
    """Other processes that have a node under `root` open or mapped.

    Raises CannotTellError when /proc hides processes, or a process cannot be looked at for another reason than a lack
    of rights.
    """
    _check_visible(proc)
    folders = (f"{root}/", f"{os.path.realpath(root)}/")
    own = _own_pid(proc)
    look = Look({}, [])
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        folder = proc / str(pid)
        if pid == own or _is_kernel_thread(folder):
            continue
        holder = Holder(pid, _command(folder))
        try:
            for number in {_card_of(path, folders) for path in _files_of(folder)}:
                if number is not None:
                    look.held.setdefault(number, []).append(holder)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except PermissionError:
            look.unreadable.append(holder)
        except OSError as error:
            raise CannotTellError(f"cannot tell whether a card is held: {holder}: {error.strerror}") from error
    return look


def _check_visible(proc: Path) -> None:
    """Check that /proc shows the processes of other users too. Raises CannotTellError."""
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


def _own_pid(proc: Path) -> int | None:
    """This process's number under `proc`, which may be another pid namespace's. None: not known."""
    try:
        return int(os.readlink(proc / "self"))
    except (OSError, ValueError):
        return None


def _files_of(process: Path) -> set[str]:
    """Paths of the files that a process has open or mapped; a mapping stays when its file is closed. Raises OSError.

    Threads share both, so any that has not ended shows them; the first may have ended while others live.
    """
    for name in os.listdir(process / "task"):
        thread = process / "task" / name
        try:
            paths = _opened(thread) | _mapped(thread)
        except OSError:
            # Nobody but root may see that a thread that has ended has nothing open.
            if _has_ended(thread):
                continue
            raise
        if not _has_ended(thread):
            return paths
    return set()


def _opened(thread: Path) -> set[str]:
    paths = set()
    for descriptor in os.listdir(thread / "fd"):
        try:
            paths.add(os.readlink(f"{thread}/fd/{descriptor}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return paths


def _mapped(thread: Path) -> set[str]:
    lines = (thread / "maps").read_text(errors="surrogateescape").splitlines()
    return {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6}


def _card_of(path: str, folders: tuple[str, ...]) -> int | None:
    """The number of the card that a file under one of `folders` is a node of, also when the node was deleted."""
    for folder in folders:
        if path.startswith(folder):
            number = card_number(path.removesuffix(_DELETED).removeprefix(folder).partition("/")[0])
            if number is not None:
                return number
    return None


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"
