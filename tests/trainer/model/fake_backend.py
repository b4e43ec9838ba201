"""A device for tests of the runners alone: runs graphs eagerly, checks arguments, knows what is alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from graphcache.device.base import Buffer, LoadedGraph, cut_views
from graphcache.graph import Graph, TensorSpec


class FakeBackend:
    """`live` holds the buffers that were not freed, `calls` counts calls by graph name."""

    name = "fake"
    pool_bytes = None
    runs_beside_others = False

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.calls: Counter[str] = Counter()
        self.bytes_in_use = 0
        self.peak_bytes = 0

    def _new(self, name: str, tensor: Tensor) -> Buffer:
        spec = TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        buffer = Buffer(spec, tensor)
        self.live.add(id(buffer))
        self.bytes_in_use += spec.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)
        return buffer

    def upload(self, host: Tensor, name: str, *, lent: bool = False) -> Buffer:
        return self._new(name, host.detach().clone())

    def download(self, buffer: Buffer) -> Tensor:
        assert id(buffer) in self.live
        return buffer._payload.clone()

    def take(self, buffer: Buffer) -> Tensor:
        host = self.download(buffer)
        self.free(buffer)
        return host

    def load(self, graph: Graph) -> LoadedGraph:
        return LoadedGraph(graph, (), graph.load_function())

    def call(self, loaded: LoadedGraph, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        for spec, buffer in zip(loaded.graph.args, args, strict=True):
            assert id(buffer) in self.live, f"{loaded.graph.name}: {spec.name} was freed"
            got = buffer.spec
            assert (spec.dtype, spec.shape) == (got.dtype, got.shape), f"{loaded.graph.name}: {spec} is not {got}"
        self.calls[loaded.graph.name] += 1
        with torch.no_grad():
            results = loaded.program(*(buffer._payload for buffer in args), **loaded.graph.constants)
        return tuple(self._new(loaded.graph.name, r) for r in (results if isinstance(results, tuple) else (results,)))

    def cut(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> tuple[Buffer, ...]:
        pieces = cut_views(buffer.spec, buffer._payload, shapes)
        self.free(buffer)
        return tuple(self._new(spec.name, view) for spec, view in pieces)

    @contextmanager
    def views(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[Buffer, ...]]:
        assert id(buffer) in self.live
        pieces = tuple(Buffer(*piece) for piece in cut_views(buffer.spec, buffer._payload, shapes))
        self.live.update(map(id, pieces))
        yield pieces
        self.live.difference_update(map(id, pieces))

    def free(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self.live.remove(id(buffer))
            buffer._payload = None
            self.bytes_in_use -= buffer.size_bytes

    def close(self) -> None:
        self.live.clear()
