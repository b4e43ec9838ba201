"""Checks a compile's result before it becomes an artifact: a compiler can exit well and have written half a file.

The runnable is read back by the vendor's runtime and must have the graph's arguments and results. The lowered graph
is read back too, and on small graphs run on the host and compared with torch. What large graphs compute is shown by
`verify --numeric`, which takes seconds for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphcache.errors import CorruptError, GraphcacheError
from graphcache.export.example_inputs import example
from graphcache.export.program import load_function
from graphcache.graph import Graph, TensorSpec
from graphcache.runtime.furiosa import HostExecutor, deserialize, signature
from graphcache.toolchain.base import Compiled

# Arguments and results of a graph that is run; 0.3 s for AdamW.
RUN_AT_MOST_ELEMENTS = 1 << 20
# Relative Frobenius error against eager torch that no right result has: the host executor differs from it by up to
# 5e-3 where bfloat16 is involved and by 3e-7 elsewhere (docs/results/).
HALF_TOLERANCE, FULL_TOLERANCE = 2e-2, 1e-5
HALF = ("bfloat16", "float16")


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
        _run(graph, outputs, executor)


def _compare(what: str, wanted: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
    ours, theirs = ([(spec.dtype, spec.shape) for spec in specs] for specs in (wanted, found))
    if ours != theirs:
        raise CheckError(
            f"the compiled graph has the {what} {theirs}, not {ours}",
            hint="a graph that returns an argument, or one result twice, has to return copies",
        )


def _run(graph: Graph, outputs: Sequence[TensorSpec], executor: HostExecutor) -> None:
    inputs = example(graph)
    with torch.no_grad():
        eager = load_function(graph)(*inputs)
    wanted = [eager] if isinstance(eager, Tensor) else list(eager)
    half = any(spec.dtype in HALF for spec in (*graph.args, *outputs))
    tolerance = HALF_TOLERANCE if half else FULL_TOLERANCE
    for place, (result, reference) in enumerate(zip(executor.execute(inputs), wanted, strict=True)):
        error = relative_error(result, reference)
        # Written so that a NaN fails.
        if not error <= tolerance:
            raise CheckError(
                f"result {place} of the lowered graph differs from torch by {error:.2g}; allowed is {tolerance:g}"
            )


def relative_error(result: Tensor, reference: Tensor) -> float:
    """Frobenius norm of the difference over that of the reference, in float64; inf for another shape or dtype."""
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return float("inf")
    wide, exact = result.double(), reference.double()
    if not torch.equal(wide.isfinite(), exact.isfinite()):
        return float("inf")
    norm = float(torch.linalg.vector_norm(exact.nan_to_num(0, 0, 0)))
    difference = float(torch.linalg.vector_norm((wide - exact).nan_to_num(0, 0, 0)))
    return difference / norm if norm else difference
