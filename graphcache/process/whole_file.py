"""A file of the user's that is there whole or not at all, with the permissions that the umask gives."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from graphcache.store.files import TEMPORARY, sync_folder


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` under a temporary name, sync it, rename it. Raises OSError, with `path` as it was.

    Not the store's write_file: its files are read-only, and these are their user's.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.urandom(16).hex()}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
