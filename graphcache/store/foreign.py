"""Folders that are no cache: a checkpoint's, somebody's home, named by mistake where a cache was meant."""

from __future__ import annotations

import os

from graphcache.store.files import store_error
from graphcache.store.layout import TOPS, Layout

# What may lie in a cache: the store's folders, that of `graphcache.location.local_dir`, and what a file system makes.
OWN = frozenset({*TOPS, "local", "lost+found"})


def is_foreign(layout: Layout) -> bool:
    """Whether something else than a cache is in the folder. One that is absent, empty, or emptied by gc is a cache.

    Raises StoreError when it cannot be listed.
    """
    if layout.is_store():
        return False
    try:
        return not OWN.issuperset(os.listdir(layout.root))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise store_error("list", layout.root, error) from error
