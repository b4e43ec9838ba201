"""Who holds a card: processes that have a node of it open or mapped, read from /proc, never by opening a node.

Threads may have tables of open files of their own, the first may have ended while others live, and a node may be open
under another name. What cannot be told is `CannotTellError`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from graphcache.device.nodes import CannotTellError, NodeFiles, identity

PROC = Path("/proc")
_DELETED = " (deleted)"
# include/linux/sched.h: a thread of the kernel's own, which has no files.
_PF_KTHREAD = 0x00200000
# kcmp(2), which Python does not have: the number of the call, and what it is to compare.
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2
# File systems that the kernel answers for by itself, and that nodes are made on. Others (NFS, FUSE, 9p, ...) may answer
# with an error or never, and are not asked: a node on one counts by its path alone. So does one on a mount that no
# process lists, as a file system that hung has after `umount --lazy`.
_LOCAL = {
    *("devtmpfs", "tmpfs", "ramfs", "rootfs", "overlay", "aufs"),
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs"),
}


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
    """Other processes that hold a node under `root`, under any name.

    Raises CannotTellError when /proc hides processes, or a node or a process cannot be looked at.
    """
    _check_visible(proc)
    nodes = NodeFiles.under(root)
    shown = _Shown.by(proc)
    look = Look({}, [])
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        folder = proc / str(pid)
        if pid == shown.own or _is_kernel_thread(folder):
            continue
        holder = Holder(pid, _command(folder))
        try:
            for number in _opened(folder, nodes, shown) | _mapped(folder, nodes):
                look.held.setdefault(number, []).append(holder)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        except PermissionError:
            look.unreadable.append(holder)
        except OSError as error:
            raise CannotTellError(f"cannot tell whether a card is held: {holder}: {error.strerror}") from error
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
class _Shown:
    """What is known of all that a /proc shows.

    own:   this process's number there, another than its own where /proc is another pid namespace's; None: not known
    kinds: of file systems, by the number of the mount, which no two mounts of the machine have
    """

    own: int | None
    kinds: dict[str, str]

    @classmethod
    def by(cls, proc: Path) -> _Shown:
        try:
            own = int(os.readlink(proc / "self"))
        except (OSError, ValueError):
            own = None
        shown = cls(own, {})
        shown.learn_mounts(proc / "self")
        return shown

    def learn_mounts(self, thread: Path) -> None:
        """Those that a thread sees: not all that its files are on, where its root is not its parent's."""
        try:
            lines = (thread / "mountinfo").read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EINVAL):  # each for a thread that has ended
                raise
            return
        for line in lines:
            mount, kind = line.partition(" - ")[::2]
            self.kinds[mount.split(" ", 1)[0]] = kind.split(" ", 1)[0]

    def is_local(self, thread: Path, descriptor: str) -> bool:
        """Whether an open file is on a file system that can be asked what it is. Raises OSError."""
        about = (thread / "fdinfo" / descriptor).read_text(errors="surrogateescape")
        mount = re.search(r"^mnt_id:\s*(\d+)$", about, re.MULTILINE)
        return mount is not None and self.kinds.get(mount[1]) in _LOCAL

    def share_files(self, one: Path, other: Path) -> bool:
        """Whether two threads have one table of open files. False also where that cannot be asked, as under seccomp."""
        if _KCMP is None or self.own != os.getpid():  # the call takes the numbers that this process sees
            return False
        return bool(ctypes.CDLL(None).syscall(_KCMP, int(one.name), int(other.name), _KCMP_FILES, 0, 0) == 0)


def _opened(process: Path, nodes: NodeFiles, shown: _Shown) -> set[int]:
    """Numbers of the cards that a process has open. Raises OSError.

    Each thread may have a table of files of its own, but seldom has: reading one of 900 files for each of 300 threads
    took seconds.
    """
    numbers: set[int | None] = set()
    seen: set[tuple[str, str]] = set()
    first: Path | None = None
    for thread in _threads(process):
        if first and shown.share_files(first, thread):
            continue
        with _unless_ended(thread):
            files = _files_of(thread)
            shown.learn_mounts(thread)
            numbers.update(_number(thread, *file, nodes, shown) for file in files - seen)
            if not _has_ended(thread):  # else it showed less than it had, perhaps
                seen |= files
                first = first or thread
    return {number for number in numbers if number is not None}


def _files_of(thread: Path) -> set[tuple[str, str]]:
    """A thread's open files: descriptor, and path or what stands for it. Raises OSError."""
    files = set()
    for descriptor in os.listdir(thread / "fd"):
        try:
            files.add((descriptor, os.readlink(f"{thread}/fd/{descriptor}")))
        except FileNotFoundError:
            continue  # closed meanwhile
    return files


def _number(thread: Path, descriptor: str, path: str, nodes: NodeFiles, shown: _Shown) -> int | None:
    """The number of the card that an open file is a node of. Raises OSError."""
    number = nodes.by_path(path.removesuffix(_DELETED))
    if number is not None or not path.startswith("/"):  # `socket:[77]`
        return number
    try:
        if shown.is_local(thread, descriptor):
            return nodes.files.get(identity(os.stat(f"{thread}/fd/{descriptor}")))
    except FileNotFoundError:
        pass  # closed meanwhile
    return None


def _mapped(process: Path, nodes: NodeFiles) -> set[int]:
    """Numbers of the cards that a process has mapped, which stay held when their files are closed. Raises OSError."""
    numbers = set()
    for line in _maps(process).splitlines():
        _, _, _, device, inode, *path = line.split(maxsplit=5)
        number = nodes.mapped.get(f"{device} {inode}")
        if number is None and path:
            number = nodes.by_path(path[0].removesuffix(_DELETED))
        if number is not None:
            numbers.add(number)
    return numbers


def _maps(process: Path) -> str:
    """Of any thread that shows them: they share their memory, and one that has ended shows none. Raises OSError."""
    for thread in _threads(process):
        with _unless_ended(thread):
            if maps := (thread / "maps").read_text(errors="surrogateescape"):
                return maps
    return ""


def _threads(process: Path) -> list[Path]:
    """The first may have ended while others live. Raises OSError."""
    return [process / "task" / name for name in os.listdir(process / "task")]


@contextmanager
def _unless_ended(thread: Path) -> Iterator[None]:
    """What is read of a thread that has ended is no error."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        pass  # meanwhile
    except PermissionError:
        # Of a thread that has ended nobody but root may see that it has nothing open.
        if not _has_ended(thread):
            raise


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"
