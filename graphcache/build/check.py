"""Checks a compile's result before it becomes an artifact: a compiler can exit well and have written half a file.

The runnable is read back by the vendor's runtime and must have the graph's arguments and results. The lowered graph
is read back too, and on small graphs run on the host against the bounds of `graphcache.proof`. What large graphs
compute is proven after they are in the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphcache.errors import CorruptError, GraphcacheError
from graphcache.graph import Graph, TensorSpec
from graphcache.proof.check import prove
from graphcache.runtime.furiosa import HostExecutor, deserialize, signature
from graphcache.toolchain.base import Compiled

# Arguments and results of a graph that is run; 0.3 s for AdamW.
RUN_AT_MOST_ELEMENTS = 1 << 20


class CheckError(GraphcacheError):
    """A compiler's result that is not what was asked for."""

    name = "check"


class HalfWrittenError(CheckError):
    """A result that cannot be read back: what a compiler leaves that ran out of disk or memory and did not notice."""

    name = "half-written"


def check(graph: Graph, outputs: Sequence[TensorSpec], compiled: Compiled, *, fusion: int) -> None:
    """Raises CheckError unless `compiled` can be read back and is `graph`, whose results are `outputs`."""
    try:
        found_args, found_outputs = signature(deserialize(compiled.runnable))
        executor = HostExecutor(compiled.dfg, fusion=fusion)
    except CorruptError as error:
        raise HalfWrittenError(
            f"the compiler wrote {error}", hint="build it again; look at free space and memory"
        ) from error
    _compare("arguments", graph.args, found_args)
    _compare("results", outputs, found_outputs)
    if sum(spec.elements for spec in (*graph.args, *outputs)) <= RUN_AT_MOST_ELEMENTS:
        _run(graph, executor)


def _compare(what: str, wanted: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
    ours, theirs = ([(spec.dtype, spec.shape) for spec in specs] for specs in (wanted, found))
    if ours != theirs:
        raise CheckError(
            f"the compiled graph has the {what} {theirs}, not {ours}",
            hint="a graph that returns an argument, or one result twice, has to return copies",
        )


def _run(graph: Graph, executor: HostExecutor) -> None:
    found = prove(graph, executor.execute, sets=1)
    if found.state == "disproven":
        raise CheckError(f"the lowered graph does not compute what its function does: {found.reason}")
