"""Quarantine: a bad file is moved out of the way of the next build, and kept for someone to look at."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from graphcache.errors import GraphcacheError
from graphcache.store.files import make_folder


def move_to_quarantine(path: Path, folder: Path, check: Callable[[Path], object]) -> Path | None:
    """Moves `path` into `folder` and returns its new path; None when it is gone, or the store cannot be written.

    What was moved is checked once more: another process may have put a good file in its place since we read it. Such a
    file is put back.
    """
    target = folder / f"{path.name}.{os.urandom(4).hex()}"
    try:
        make_folder(folder)
        os.rename(path, target)
    except OSError:
        return None
    if not _passes(target, check):
        return target
    with contextlib.suppress(OSError):
        os.rename(target, path)
    return None


def _passes(path: Path, check: Callable[[Path], object]) -> bool:
    try:
        check(path)
    except (GraphcacheError, OSError):
        return False
    return True
