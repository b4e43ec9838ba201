"""The host as a device: graphs run in their form for the host, buffers are host tensors, no pool is enforced."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphcache.device.base import Buffer, LoadedGraph, Observer, check_args, cut_views
from graphcache.graph import Graph, TensorSpec
from trainer.device.products import HostProducts
from trainer.host.forms import host_form
from trainer.host.pages import copy
from trainer.host.row_form import RowForm


class CpuBackend:
    """See `DeviceBackend`. Counts bytes so that the cpu shows in `steps.jsonl` what a card would hold."""

    def __init__(self, name: str = "cpu") -> None:
        self.name = name
        self.pool_bytes: int | None = None
        self.runs_beside_others = False  # they would share the host's threads
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self.calls: Counter[str] = Counter()
        self.call_secs: defaultdict[str, float] = defaultdict(float)
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        self._products = HostProducts()

    def upload(self, host: Tensor, name: str, *, lent: bool = False) -> Buffer:
        host = host.detach()
        return self._buffer(name, host if lent and host.is_contiguous() else copy(host))

    def download(self, buffer: Buffer) -> Tensor:
        payload: Tensor = buffer._payload
        return copy(payload)

    def take(self, buffer: Buffer) -> Tensor:
        payload: Tensor = buffer._payload
        self.free(buffer)
        return payload

    def load(self, graph: Graph) -> LoadedGraph:
        form = host_form(graph)
        # The mode looks at each of torch's functions, 60 us a call: as long as a norm of 128 rows takes.
        plain = isinstance(form, RowForm) and not form.multiplies
        return LoadedGraph(graph, (), form if plain else partial(self._with_products, form))

    def _with_products(self, form: Callable[..., Any], *tensors: Tensor) -> Any:
        with self._products:
            return form(*tensors)

    def call(self, loaded: LoadedGraph, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """Runs the graph's function. A result may share memory with an argument: graphs are pure, so nobody sees it."""
        check_args(loaded.graph, args)
        name, began = loaded.graph.name, time.perf_counter()
        function: Callable[..., Any] = loaded.program
        with torch.no_grad():
            results = function(*(a._payload for a in args))
        ended = time.perf_counter()
        with self._lock:
            self.calls[name] += 1
            self.call_secs[name] += ended - began
        observer = self.observer
        if observer is not None:
            observer(name, began, ended)
        if isinstance(results, Tensor):
            results = (results,)
        return tuple(self._buffer(f"{loaded.graph.name} result {i}", r) for i, r in enumerate(results))

    def cut(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> tuple[Buffer, ...]:
        pieces = cut_views(buffer.spec, buffer._payload, shapes)
        buffer._payload = None
        return tuple(Buffer(*piece) for piece in pieces)

    @contextmanager
    def views(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[Buffer, ...]]:
        yield tuple(Buffer(*piece) for piece in cut_views(buffer.spec, buffer._payload, shapes))

    def free(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            assert buffer._payload is not None, f"{buffer.spec.name} is freed twice"
            buffer._payload = None
            self._count(-buffer.size_bytes)

    def close(self) -> None:
        """Nothing to let go of: the host's memory follows the buffers."""

    def _buffer(self, name: str, payload: Tensor) -> Buffer:
        dtype = str(payload.dtype).removeprefix("torch.")
        buffer = Buffer(TensorSpec(name, dtype, tuple(payload.shape)), payload)
        self._count(buffer.size_bytes)
        return buffer

    def _count(self, change_bytes: int) -> None:
        with self._lock:
            self.bytes_in_use += change_bytes
            self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)
