"""The store that a command works on, remotes included; nothing of remotes is imported where none is named."""

from __future__ import annotations

import os
from collections.abc import Sequence

from graphcache.remote.url import RemoteUrl
from graphcache.store.local import LocalStore


def open_store(root: str | os.PathLike[str], remotes: Sequence[RemoteUrl], *, push: bool = False) -> LocalStore:
    """The store in `root`; with `remotes` a `graphcache.remote.tiered.TieredStore`. Raises RemoteError."""
    if not remotes:
        return LocalStore(root)
    # asyncio and what is above it take longer than a look-up.
    from graphcache.remote.tiered import TieredStore

    return TieredStore(root, remotes, push=push)
