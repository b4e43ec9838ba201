"""Claims: a lock that only saves duplicate work.

The kernel drops a lock when its holder dies, and on a network file system a lock call may fail or succeed for everyone:
the store is right in every one of these cases, so a claim that cannot be made counts as made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from graphcache.store.files import make_folder

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Holds the lock file `path` while the block runs; False when someone else holds it."""
    handle = _open(path)
    if handle is None:
        yield True
        return
    alone = _lock(handle)
    _log.debug("claim %s: %s", path.name, "held by this process" if alone else "held by another")
    try:
        yield alone
    finally:
        if alone:
            # Removed while held; someone who waits on the removed file, or makes a new one, only works twice.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(handle)


def _open(path: Path) -> int | None:
    try:
        make_folder(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
