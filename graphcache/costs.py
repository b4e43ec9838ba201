"""How long a compile will take, from how long compiles have taken."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphcache.graph import Graph

if TYPE_CHECKING:
    from graphcache.store.base import Cost

# Elements of all arguments up to which size makes no difference: 1,536 and 8,388,608 elements of AdamW both take 5 s.
FLAT_ELEMENTS = 1 << 22


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
        self._exact[graph.identity_digest()] = cost
        self._by_function[graph.function].append((graph, cost))

    def expect(self, graph: Graph) -> Expected | None:
        """The recorded cost of the same graph, else of the nearest size of its function, scaled; None for neither.

        The nearest is that of the smallest ratio. Scaling is by the square root of the ratio above FLAT_ELEMENTS. Over
        all pairs of sizes of one function in cache_manifests/ it is off by a factor of 1.4 in the middle, 2.4 for one
        in ten, 4.9 at most. Too little for an AdamW graph of more than 8,388,608 elements, where the compile jumps
        (docs/results/adamw-tiles.md).
        """
        cost = self._exact.get(graph.identity_digest())
        if cost is not None:
            return Expected(cost.wall_secs, "recorded")
        others = self._by_function.get(graph.function)
        if not others:
            return None
        nearest, cost = min(others, key=lambda other: (_distance(other[0], graph), other[0].name))
        return Expected(cost.wall_secs * math.sqrt(_size(graph) / _size(nearest)), nearest.name)


def _distance(one: Graph, other: Graph) -> float:
    """The ratio of their sizes: 3 and 12 are as far apart as 12 and 48."""
    return abs(math.log(max(1, _elements(one)) / max(1, _elements(other))))


def _size(graph: Graph) -> int:
    """As far as it makes a difference."""
    return max(FLAT_ELEMENTS, _elements(graph))


def _elements(graph: Graph) -> int:
    return sum(spec.elements for spec in graph.args)
