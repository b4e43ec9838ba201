"""The content-addressed store: plain files, checked on every read."""

from graphcache.store.base import Cost, Entry, Facts, Failure, Fault, Store
from graphcache.store.find import Found, find, observe
from graphcache.store.layers import ReadOnly, Tiered
from graphcache.store.local import LocalStore

__all__ = [
    "Cost",
    "Entry",
    "Facts",
    "Failure",
    "Fault",
    "Found",
    "LocalStore",
    "ReadOnly",
    "Store",
    "Tiered",
    "find",
    "observe",
]
