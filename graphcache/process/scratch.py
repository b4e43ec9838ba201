"""A folder for a build's leftovers, swept even after kill -9: by another build a day later, if not by its own.

Each is held by a file lock for as long as its process lives, so a folder whose lock is free belongs to nobody. Where
locks do nothing (a network file system), the day keeps other builds' folders safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from graphcache.errors import MachineError

PREFIX = "graphcache-build-"
SWEEP_AFTER_SECS = 86_400.0
_LOCK = "held"


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder under `parent` (the system's folder for temporary files), removed at the end with all in it."""
    parent = parent or temporary_folder()
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # systemd-tmpfiles leaves alone what is in a folder that is locked itself.
    itself = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(itself, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
        os.close(itself)


def temporary_folder() -> Path:
    """The system's folder for temporary files. Raises MachineError when none can be written: a read-only root."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise MachineError(
            f"no folder for temporary files can be written: {error.strerror or error}",
            hint="set TMPDIR to one that can: a volume (emptyDir), or /dev/shm",
        ) from error


def sweep(parent: Path) -> None:
    """Removes what killed builds of this user left under `parent`."""
    for folder in parent.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
                _remove_if_free(folder)


def _remove_if_free(folder: Path) -> None:
    # Without the lock file it is a builder's that has just made the folder, or one being removed.
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_mtime + SWEEP_AFTER_SECS < time.time():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
