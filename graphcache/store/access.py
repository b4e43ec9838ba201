"""Who may write to a cache's folder. A private one is its owner's alone; a shared one says so in the environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from graphcache.errors import StoreError
from graphcache.store.files import make_folder, store_error

SHARED_VARIABLE = "GRAPHCACHE_SHARED"


def is_shared() -> bool:
    """Whether caches are shared on purpose. Raises StoreError for what is neither yes nor no."""
    text = os.environ.get(SHARED_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise StoreError(f"{SHARED_VARIABLE} is {text!r}", hint="1 for a folder that others write to as well, else 0")
    return text == "1"


def make_private(root: Path) -> None:
    """Makes the folder of a cache, for its owner alone unless it is shared. Raises StoreError."""
    try:
        if root.exists():
            return
        make_folder(root.parent)
        root.mkdir(0o777 if is_shared() else 0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise store_error("make", root, error) from error


def check_private(root: Path) -> None:
    """Raises StoreError for a folder that others can write to, unless caches are shared: what lies in it may be theirs.

    The superuser can write anywhere, so a folder of root's is nobody else's.
    """
    try:
        status = root.stat()
    except OSError:
        # What cannot be looked at is an error of whoever reads it.
        return
    if is_shared():
        return
    mode, mine = stat.filemode(status.st_mode), status.st_uid in (os.geteuid(), 0)
    if mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    who = f"of mode {mode}" if mine else f"of user {status.st_uid}, and this process is user {os.geteuid()}"
    raise StoreError(
        f"the cache {root} is {who}: others can write to it, and what they write would run on the card",
        hint=f"chmod go-w it, or set {SHARED_VARIABLE}=1 when it is shared on purpose (docs/trust.md)",
    )
