"""The store that a command works on: signatures and remotes as they are asked for, and no folder that others write to.

Nothing of remotes is imported where none is named, and nothing of signatures where none is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from graphcache.remote.url import RemoteUrl
from graphcache.store.access import check_private, is_shared
from graphcache.store.local import LocalStore
from graphcache.trust.guard import guard_of_environment


def open_store(
    root: str | os.PathLike[str], remotes: Sequence[RemoteUrl] = (), *, push: bool = False, trust: Path | None = None
) -> LocalStore:
    """The store in `root`; with `remotes`, or shared with other hosts, a `graphcache.remote.tiered.TieredStore`.

    push:  whether what is committed is written to the last remote that can be written
    trust: a file of keys, one of which has to have signed what is used; None: the one that the environment names

    Raises RemoteError, TrustError, and StoreError for a folder that others can write to.
    """
    check_private(Path(root))
    guard = guard_of_environment(trust)
    if not remotes and not is_shared():
        return LocalStore(root, guard)
    # asyncio and what is above it take longer than a look-up.
    from graphcache.remote.tiered import TieredStore

    return TieredStore(root, remotes, push=push, guard=guard)
