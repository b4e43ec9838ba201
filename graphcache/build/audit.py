"""A build's line in the log of builds, written while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphcache.build.report import Listener, Outcome, Running, Trouble
from graphcache.costs import Expected
from graphcache.graph import Graph
from graphcache.key import Key
from graphcache.plan import PlanItem
from graphcache.store.builds import BuildRecord, Built
from graphcache.store.local import LocalStore


class AuditingListener:
    """Hands everything on to another listener, and logs each graph that this build compiled, or failed to.

    toolchain: has to be set before the first graph ends. Raises StoreError when the log cannot be written.
    """

    def __init__(self, listener: Listener, store: LocalStore) -> None:
        self.toolchain: Mapping[str, str] = {}
        self._listener, self._store = listener, store
        self._started: set[str] = set()
        self._record: BuildRecord | None = None

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        self._listener.planned(items, expected, workers)

    def started(self, graph: Graph, expected: Expected | None) -> None:
        self._started.add(graph.name)
        self._listener.started(graph, expected)

    def elsewhere(self, graph: Graph) -> None:
        self._listener.elsewhere(graph)

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        self._log(Built(item.made.name, item.made.catalog, "failed", _digest(item.key), None))
        self._listener.refused(item, trouble, following)

    def finished(self, outcome: Outcome) -> None:
        made, entry, key = outcome.item.made, outcome.entry, outcome.item.key
        if outcome.state == "compiled" and entry is not None:
            self._log(Built(made.name, made.catalog, "compiled", entry.key.digest, entry.artifact_digest))
        elif outcome.state == "failed" and made.name in self._started:
            self._log(Built(made.name, made.catalog, "failed", _digest(key), None))
        self._listener.finished(outcome)

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        self._listener.tick(running, waiting)

    def _log(self, built: Built) -> None:
        before = self._record
        self._record = (before or BuildRecord.begin(self.toolchain)).with_built(built)
        self._store.record_build(self._record, before if before and before.id == self._record.id else None)


def _digest(key: Key | None) -> str | None:
    return None if key is None else key.digest
