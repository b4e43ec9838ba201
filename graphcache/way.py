"""Ways: the forms in which a graph can be compiled and called, of which one is enough.

A graph says what is computed, for which arguments. A way is one form of it under one set of compiler settings: a graph
of its own, with its own signature, program and key. The first way of a graph is the graph itself. Others are, above
all, *row tiles*: a graph for R rows that is called T / R times on views of the T rows, so that what the compiler
refuses for T, or has never compiled for it, is served by what it takes.

A catalog lists a graph's ways in the order in which a builder should try them (`Graph.ways`).
"""

from __future__ import annotations

from collections.abc import Sequence

from graphcache.graph import Graph, TensorSpec, Way


def ways_of(graph: Graph) -> tuple[Way, ...]:
    """All ways in the order in which a builder tries them: the graph itself first."""
    return Way(graph), *graph.ways


def way_for(graph: Graph, args: Sequence[TensorSpec]) -> Way | None:
    """The first way whose arguments have these dtypes and shapes: that of an artifact which the store has for `graph`.

    Ways of equal arguments are called alike, so which of them it is makes no difference to a caller.
    """
    wanted = [(spec.dtype, spec.shape) for spec in args]
    ways = (way for way in ways_of(graph) if [(a.dtype, a.shape) for a in way.graph.args] == wanted)
    return next(ways, None)
