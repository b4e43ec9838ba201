"""The graphs that a runner calls, by the part of the step that each one is."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcache.device.base import Buffer, DeviceBackend, LoadedGraph
from graphcache.graph import Graph
from trainer.model.tiled_call import TiledCall


class GraphSet:
    """The loaded graphs of a runner by part of the step, and the zeros that vectors' accumulators start from.

    Graphs are pure, so the zeros are shared by every layer and kept for the whole run: one buffer a shape.
    """

    def __init__(self, backend: DeviceBackend, found: Mapping[str, Graph]) -> None:
        self.backend = backend
        self._found = found
        self._loaded: dict[str, LoadedGraph] = {}
        self._by_name: dict[str, LoadedGraph] = {}
        self._zeros: dict[tuple[int, ...], Buffer] = {}

    def load(self) -> None:
        """Load every graph once, and what its way needs besides. Raises MissingGraphsError when the cache lacks one."""
        for part, graph in self._found.items():
            loaded = self._loaded[part] = self._load(graph)
            for need in () if loaded.way is None else loaded.way.needs:
                self._load(need)

    def _load(self, graph: Graph) -> LoadedGraph:
        if graph.name not in self._by_name:
            self._by_name[graph.name] = self.backend.load(graph)
        return self._by_name[graph.name]

    def call(self, part: str, *args: Buffer) -> tuple[Buffer, ...]:
        """The results of a part of the step, each whole, by however many calls of the graph that there is for it."""
        loaded = self._loaded[part]
        if loaded.way is None or loaded.way.calls == 1:
            return self.backend.call(loaded, args)
        return TiledCall(self.backend, loaded, loaded.way, self._by_name).run(args)

    def view(self, buffer: Buffer, *shape: int) -> Buffer:
        """The buffer in another shape, without a copy. Takes it."""
        (piece,) = self.backend.cut(buffer, [shape])
        return piece

    def zeros(self, shape: tuple[int, ...]) -> Buffer:
        """Zeros [shape] float32, not to be freed by the caller."""
        if shape not in self._zeros:
            self._zeros[shape] = self.backend.upload(torch.zeros(shape), "zeros")
        return self._zeros[shape]

    def weight_grad(self, weight: str, total: Buffer | None, dy: Buffer, x: Buffer) -> Buffer:
        """A weight's gradient added to `total`, which is used up; dy and x are not."""
        (grad,) = self.call(f"{weight}_grad", dy, x)
        if total is None:
            return grad
        (new,) = self.call(f"{weight}_add", total, grad)
        self.backend.free(total, grad)
        return new
