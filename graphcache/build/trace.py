"""A build's timeline: which graph was compiled when, beside which others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphcache.build.report import Listener, Outcome, Running, Trouble
from graphcache.costs import Expected
from graphcache.graph import Graph
from graphcache.plan import PlanItem
from graphcache.process.chrome_trace import Span

GROUP = "build"


class TracingListener:
    """Hands everything on to another listener, and keeps when each graph began and ended.

    `spans` are on lanes named `worker N`: a graph takes the lowest one that is free, as many as workers ran at once.
    """

    def __init__(self, listener: Listener, clock: Callable[[], float] = time.monotonic) -> None:
        self.spans: list[Span] = []
        self._listener, self._clock = listener, clock
        self._began = clock()
        self._running: dict[str, tuple[int, float]] = {}

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        self._listener.planned(items, expected, workers)

    def started(self, graph: Graph, expected: Expected | None) -> None:
        taken = {lane for lane, _ in self._running.values()}
        lane = next(number for number in range(1, len(taken) + 2) if number not in taken)
        self._running[graph.name] = lane, self._clock() - self._began
        self._listener.started(graph, expected)

    def elsewhere(self, graph: Graph) -> None:
        self._listener.elsewhere(graph)

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        self._end(item.made, {"refused": trouble.cause})
        self._listener.refused(item, trouble, following)

    def finished(self, outcome: Outcome) -> None:
        self._end(outcome.item.made, outcome.as_json())
        self._listener.finished(outcome)

    def _end(self, graph: Graph, facts: Mapping[str, Any]) -> None:
        if graph.name in self._running:
            lane, start = self._running.pop(graph.name)
            self.spans.append(
                Span(GROUP, f"worker {lane}", graph.name, start, self._clock() - self._began - start, facts)
            )

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        self._listener.tick(running, waiting)
