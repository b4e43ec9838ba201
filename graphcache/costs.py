"""How long a compile will take, from how long compiles have taken."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphcache.digest import json_sha256
from graphcache.graph import Graph

if TYPE_CHECKING:
    from graphcache.store.base import Cost


@dataclass(frozen=True)
class Expected:
    """Wall seconds that a compile is expected to take; `basis` says whence: `recorded`, or the graph scaled from."""

    secs: float
    basis: str


class Costs:
    """Recorded costs, by graph; the last one added of each counts."""

    def __init__(self) -> None:
        self._exact: dict[str, Cost] = {}
        self._by_function: dict[str, list[tuple[Graph, Cost]]] = defaultdict(list)

    def add(self, graph: Graph, cost: Cost) -> None:
        self._exact[_identity(graph)] = cost
        self._by_function[graph.function].append((graph, cost))

    def expect(self, graph: Graph) -> Expected | None:
        """The recorded cost of the same graph, else of the nearest size of its function, scaled; None for neither.

        Scaling is linear in the elements: close below 8 million, too little above (docs/results/).
        """
        cost = self._exact.get(_identity(graph))
        if cost is not None:
            return Expected(cost.wall_secs, "recorded")
        others = self._by_function.get(graph.function)
        size = _elements(graph)
        if not others or not size:
            return None
        nearest, cost = min(others, key=lambda other: (abs(_elements(other[0]) - size), other[0].name))
        return Expected(cost.wall_secs * max(1.0, size / max(1, _elements(nearest))), nearest.name)


def _identity(graph: Graph) -> str:
    return json_sha256([graph.function, graph.signature(), dict(graph.settings)])


def _elements(graph: Graph) -> int:
    return sum(spec.elements for spec in graph.args)
