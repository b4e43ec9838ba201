"""The content-addressed store: plain files, checked on every read."""

from graphcache.store.base import Cost, Facts, Failure
from graphcache.store.local import LocalStore
from graphcache.store.read_only import ReadOnly

__all__ = [
    "Cost",
    "Facts",
    "Failure",
    "LocalStore",
    "ReadOnly",
]
