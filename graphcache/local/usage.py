"""The usage ledger: how often, and when last, each entry of the store was used. Eviction reads it.

It is kept in the memo's database and shares its promise: losing it costs nothing but a worse choice of what to evict.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graphcache.local.memo import Memo

PREFIX = "use "
MISSED = "miss "


@dataclass(frozen=True)
class Usage:
    """`hits` uses since the ledger began; `last_used_secs` is Unix time."""

    hits: int
    last_used_secs: float


class Ledger:
    """Usage of entries, by the entry's key digest."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo

    def record(self, keys: Iterable[str], now_secs: float | None = None) -> None:
        """Count one use of each key, in one transaction."""
        now = time.time() if now_secs is None else now_secs

        def used(value: Any | None) -> list[float]:
            before = _usage(value)
            return [before.hits + 1, max(now, before.last_used_secs)] if before else [1, now]

        self._memo.update([PREFIX + key for key in keys], used)

    def record_misses(self, misses: Iterable[tuple[str, str]]) -> None:
        """Count misses, each a catalog and the kind of its reason (`graphcache.store.find.Miss`)."""
        keys = [MISSED + json.dumps(each) for each in misses]

        def more(value: Any | None) -> int:
            return (value if type(value) is int and value > 0 else 0) + 1

        self._memo.update(keys, more)

    def misses(self) -> dict[tuple[str, str], int]:
        """How many there were of each catalog and kind, as far as the ledger remembers."""
        found = {}
        for key, count in self._memo.items(MISSED).items():
            match json.loads(key[len(MISSED) :]), count:
                case [str(catalog), str(kind)], int(many):
                    found[catalog, kind] = many
        return dict(sorted(found.items()))

    def usage(self) -> dict[str, Usage]:
        """Every key that was ever used, as far as the ledger remembers."""
        found = {key[len(PREFIX) :]: _usage(value) for key, value in self._memo.items(PREFIX).items()}
        return {key: usage for key, usage in sorted(found.items()) if usage}

    def forget(self, keys: Iterable[str]) -> None:
        """Drop keys whose entries are gone."""
        self._memo.delete([PREFIX + key for key in keys])


def _usage(value: Any | None) -> Usage | None:
    """None for what `record` would not have written."""
    match value:
        case [int(hits), int(last_used_secs) | float(last_used_secs)]:
            return Usage(hits, float(last_used_secs))
        case _:
            return None
