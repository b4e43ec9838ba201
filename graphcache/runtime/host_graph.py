"""An artifact as a Python function: its lowered graph, run on the host by the vendor's own executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphcache.artifact import Artifact
from graphcache.errors import CorruptError, UsageError
from graphcache.graph import Graph, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor


class HostGraph:
    """A graph of the cache that can be called with CPU tensors. Nothing is compiled, whatever it is called with.

    graph:   what it was loaded for
    outputs: dtype and shape of each result
    """

    def __init__(self, graph: Graph, artifact: Artifact) -> None:
        """Imports torch and the vendor's runtime, and fixes this process's fusion at the artifact's.

        Raises FusionError when it is fixed at another value, CorruptError for an artifact that cannot be read or takes
        other arguments than `graph`.
        """
        from graphcache.runtime.furiosa import HostExecutor

        self.graph = graph
        self.outputs: tuple[TensorSpec, ...] = artifact.outputs
        if _shapes(artifact.args) != _shapes(graph.args):
            raise CorruptError(
                f"the artifact of {graph.name} takes {_shapes(artifact.args)}, the graph {_shapes(graph.args)}"
            )
        self._executor = HostExecutor.of(artifact)

    def __call__(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The results as new CPU tensors: one, or a tuple of several.

        Raises UsageError, naming the argument, for tensors of other shapes or dtypes than the graph's or that are not
        on the CPU; HostExecutionError when the executor fails.
        """
        check_tensors(self.graph, tensors)
        results = self._executor.execute([tensor.detach() for tensor in tensors])
        return results[0] if len(results) == 1 else tuple(results)

    def __repr__(self) -> str:
        return f"<HostGraph {self.graph.name}>"


def check_tensors(graph: Graph, tensors: Sequence[Tensor]) -> None:
    """Raises UsageError unless `tensors` are CPU tensors of the graph's arguments' dtypes and shapes, in their order.

    The executor itself takes a tensor of another dtype or shape for the bytes that it wants.
    """
    if len(tensors) != len(graph.args):
        raise UsageError(f"{graph.name} takes {len(graph.args)} tensors, not {len(tensors)}", hint=_signature(graph))
    for spec, tensor in zip(graph.args, tensors, strict=True):
        found = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if found != (spec.dtype, spec.shape) or tensor.device.type != "cpu":
            where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
            raise UsageError(
                f"{graph.name}: {spec.name} is {found[0]}{list(found[1])}{where}, "
                f"and the graph takes {spec.dtype}{list(spec.shape)} on the CPU",
                hint=_signature(graph),
            )


def _signature(graph: Graph) -> str:
    args = ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in graph.args)
    return f"its arguments: {args}"


def _shapes(specs: Sequence[TensorSpec]) -> list[tuple[str, tuple[int, ...]]]:
    return [(spec.dtype, spec.shape) for spec in specs]
