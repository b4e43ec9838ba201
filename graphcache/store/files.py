"""Plain files that are there whole or not at all, on a local disk or on a folder shared over NFS.

A file is written under a temporary name in its own folder, synced, then given its name; then the folder is synced.
The temporary name is random: a process id is the same in two containers that share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from graphcache.errors import StoreError

TEMPORARY = ".tmp-"
# Of a write, or of an object that gc has taken out of sight.
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + "(gc-)?[0-9a-f]{32}")

# What the reader of an error can do instead, for files of a store.
OTHER_CACHE = "choose another folder with --cache"

_HINTS = {
    errno.ENOSPC: "free some space or inodes (df -h, df -i), or run `graphcache gc --max-size SIZE --yes`",
    errno.EDQUOT: "the quota of this user or folder is used up: free some, or {instead}",
    errno.EROFS: "the file system is mounted read-only: {instead}",
    errno.EACCES: "{owner}: change its permissions, or {instead}",
    errno.EPERM: "{owner}: change its permissions, or {instead}",
    errno.EFBIG: "a file size limit is set for this process (ulimit -f) or file system",
    errno.ENOTDIR: "a file lies where a folder is needed; move it away, or {instead}",
}


def store_error(action: str, path: Path, error: OSError, instead: str = OTHER_CACHE) -> StoreError:
    """What happened, to which file, and what to do about it; `instead` is what the caller's user can choose."""
    hint = _HINTS.get(error.errno or 0, "look at the folder and its file system, or {instead}")
    hint = dangling_hint(path) or hint.format(owner=_owner(path), instead=instead)
    return StoreError(f"cannot {action} {path}: {error.strerror or error}", hint=hint)


def dangling_hint(path: Path) -> str:
    """What to do when `path`, or a folder above it, is a symlink to what is not there; empty when none is."""
    for place in (path, *path.parents):
        if os.path.islink(place) and not os.path.exists(place):
            return f"{place} is a link to {os.readlink(place)}, which is not there: make it, or remove the link"
    return ""


def write_file(path: Path, data: bytes, *, replace: bool, instead: str = OTHER_CACHE) -> bool:
    """Makes the file `path` hold `data`, for ever and whole. False when it was there already and `replace` is not set.

    Raises StoreError, whose hint may end in `instead`; then nothing of the file is left, unless the process was
    killed: see `is_temporary`.
    """
    try:
        return _write_file(path, data, replace)
    except OSError as error:
        raise store_error(f"write {len(data):,} bytes to", path, error, instead) from error


def check_writable(folder: Path) -> None:
    """Raises the OSError that making `folder`, or a file in it, would end with; nothing is made. It names the nearest
    place that is there, a link to what is not there included."""
    place = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    if not place.is_dir():
        code = errno.ENOTDIR
    elif not os.access(place, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
    else:
        return
    raise OSError(code, os.strerror(code), str(place))


def is_temporary(path: Path) -> bool:
    """Whether `path` is what a killed or a still running write left: never read, swept by gc after a day."""
    return _TEMPORARY_NAME.fullmatch(path.name) is not None


def make_folder(folder: Path) -> None:
    """Makes `folder` and its parents, each synced into its own parent. Raises OSError."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    # Another process may make it first; a file in its place is an error that names it.
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        sync_folder(folder.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync_folder(folder: Path) -> None:
    """Makes names in `folder` survive a power cut, where the file system can say so."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder; their servers order it themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


def _write_file(path: Path, data: bytes, replace: bool) -> bool:
    temporary = _write_temporary(path.parent, data)
    try:
        placed = _give_name(temporary, path, replace)
    finally:
        # Gone after a rename, one of two names after a link.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return placed


def _write_temporary(folder: Path, data: bytes) -> Path:
    temporary = folder / f"{TEMPORARY}{os.urandom(16).hex()}"
    handle = _create(temporary)
    try:
        try:
            _write_all(handle, data)
            os.fsync(handle)
        finally:
            # NFS may report a full disk only here.
            os.close(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def _create(temporary: Path) -> int:
    """A handle of the new file. Read-only for everyone later on, so that no consumer changes it by accident."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(3):
        make_folder(temporary.parent)
        # gc may remove a folder that it found empty between these two lines.
        with contextlib.suppress(FileNotFoundError):
            return os.open(temporary, flags, 0o444)
    return os.open(temporary, flags, 0o444)


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        written = os.write(handle, left)
        if written <= 0:
            raise OSError(errno.ENOSPC, "the write came short")
        left = left[written:]


def _give_name(temporary: Path, path: Path, replace: bool) -> bool:
    if replace:
        os.replace(temporary, path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        # No hard links here (FAT, some FUSE): a rename lets the last writer win, with a whole file all the same.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.replace(temporary, path)
    return True


def _owner(path: Path) -> str:
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            status = folder.stat()
            return f"{folder} belongs to user {status.st_uid}, this process is user {os.geteuid()}"
    return f"{path} cannot be looked at by user {os.geteuid()}"
