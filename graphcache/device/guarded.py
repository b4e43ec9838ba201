"""The backend of emulator and card: a `Card` behind the guard. The one file that has both in its hands."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from graphcache.device.base import Buffer, LoadedGraph, Observer, check_args, cut_views
from graphcache.device.card import Card, Program, describe
from graphcache.device.guard import Guard
from graphcache.graph import Graph, TensorSpec
from graphcache.runtime.refusal import compiles_refused


class GuardedBackend:
    """See `DeviceBackend`. From its making until `close`, nothing in this process can compile."""

    def __init__(self, card: Card, guard: Guard | None = None) -> None:
        """`guard` is for tests of the guard. Raises ToolchainError when compiles cannot be refused."""
        self.name = card.name
        self._card = card
        flag_is_shared = card.flag.flag_is_shared_by_threads()
        self.runs_beside_others = not flag_is_shared
        self._guard = guard or Guard(card.name, card.pool_bytes, flag_is_shared=flag_is_shared)
        self.calls: Counter[str] = Counter()
        self.call_secs: defaultdict[str, float] = defaultdict(float)
        self.observer: Observer | None = None
        self._live: set[Buffer] = set()
        self._live_lock = threading.Lock()
        self._open = ExitStack()
        self._open.enter_context(compiles_refused())
        self._open.callback(card.close)

    @property
    def bytes_in_use(self) -> int:
        return self._guard.bytes_in_use

    @property
    def peak_bytes(self) -> int:
        return self._guard.peak_bytes

    @property
    def pool_bytes(self) -> int:
        return self._guard.pool_bytes

    def upload(self, host: Tensor, name: str, *, lent: bool = False) -> Buffer:
        spec = describe(host, name)
        with self._guard.reserved(spec.size_bytes, name):
            with self._guard.allocation():
                payload = self._card.allocate(spec)
            began = time.perf_counter()
            self._card.write(payload, host.detach())
        self._tell("upload", began, time.perf_counter())
        return self._adopt(spec, payload)

    def download(self, buffer: Buffer) -> Tensor:
        self._check(buffer)
        began = time.perf_counter()
        host = self._card.read(buffer._payload, buffer.spec)
        self._tell("download", began, time.perf_counter())
        return host

    def take(self, buffer: Buffer) -> Tensor:
        host = self.download(buffer)
        self.free(buffer)
        return host

    def load(self, graph: Graph) -> LoadedGraph:
        what = f"the program of {graph.name}"
        # Its size is known only when it is there; the first block names it should the card itself have no room.
        with self._guard.reserved(0, what), self._guard.call():
            program = self._card.load(graph)
        with self._guard.reserved(program.size_bytes, what):
            way = program.way
            return LoadedGraph(graph if way is None else way.graph, program.outputs, program, way)

    def call(self, loaded: LoadedGraph, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        graph, program = loaded.graph, loaded.program
        assert isinstance(program, Program)
        check_args(graph, args)
        for buffer in args:
            self._check(buffer)
        size_bytes = sum(spec.size_bytes for spec in program.outputs)
        with self._guard.reserved(size_bytes, f"the results of {graph.name}"), self._guard.call():
            began = time.perf_counter()
            payloads = self._card.execute(program, [buffer._payload for buffer in args])
            self.calls[graph.name] += 1
            ended = time.perf_counter()
            self.call_secs[graph.name] += ended - began
        self._tell(graph.name, began, ended)
        return tuple(self._adopt(*result) for result in zip(program.outputs, payloads, strict=True))

    def cut(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> tuple[Buffer, ...]:
        # Views of a device tensor are the runtime's own and change no memory, so nothing is compiled or allocated.
        pieces = cut_views(buffer.spec, buffer._payload, shapes)
        with self._live_lock:
            self._live.remove(buffer)
        buffer._payload = None
        return tuple(self._adopt(*piece) for piece in pieces)

    @contextmanager
    def views(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[Buffer, ...]]:
        self._check(buffer)
        pieces = tuple(self._adopt(*piece) for piece in cut_views(buffer.spec, buffer._payload, shapes))
        try:
            yield pieces
        finally:
            with self._live_lock:
                self._live.difference_update(pieces)
            for piece in pieces:
                piece._payload = None

    def free(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            with self._live_lock:
                assert buffer in self._live, f"{buffer.spec.name} is not on {self.name}, or was freed before"
                self._live.remove(buffer)
            self._card.release(buffer._payload)
            buffer._payload = None
            self._guard.release(buffer.size_bytes)

    def close(self) -> None:
        with self._live_lock:
            left = list(self._live)
        self.free(*left)
        self._open.close()

    def _tell(self, what: str, began: float, ended: float) -> None:
        observer = self.observer
        if observer is not None:
            observer(what, began, ended)

    def _adopt(self, spec: TensorSpec, payload: Any) -> Buffer:
        buffer = Buffer(spec, payload)
        with self._live_lock:
            self._live.add(buffer)
        return buffer

    def _check(self, buffer: Buffer) -> None:
        assert buffer in self._live, f"{buffer.spec.name} is not on {self.name}, or was freed"
