"""A card that notices what a real one would suffer from in silence: two users at once, and who frees what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from graphcache.device.card import Program
from graphcache.device.emulator import EmulatedFlag
from graphcache.graph import Graph, TensorSpec


class FakeFlag(EmulatedFlag):
    """One that is shared by threads, or says that it is not."""

    def __init__(self, *, shared_by_threads: bool) -> None:
        super().__init__()
        self._answer = shared_by_threads

    def flag_is_shared_by_threads(self) -> bool:
        return self._answer


class FakeCard:
    """`together` holds pairs of things that ran at the same time, `running` what runs now.

    A graph's call returns its arguments doubled, after `in_call` was called.
    """

    def __init__(
        self, *, name: str = "fake", pool_bytes: int = 1 << 20, shared_by_threads: bool = True, pause_secs: float = 0.0
    ) -> None:
        self.name = name
        self.pool_bytes = pool_bytes
        self.flag = FakeFlag(shared_by_threads=shared_by_threads)
        self.pause_secs = pause_secs
        self.together: set[tuple[str, str]] = set()
        self.running: list[str] = []
        self.full = False
        self.closed = 0
        self.in_call: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @contextmanager
    def _runs(self, what: str) -> Iterator[None]:
        with self._lock:
            self.together.update((min(what, other), max(what, other)) for other in self.running)
            self.running.append(what)
        try:
            time.sleep(self.pause_secs)
            yield
        finally:
            with self._lock:
                self.running.remove(what)

    def allocate(self, spec: TensorSpec) -> Tensor:
        with self._runs("allocation"):
            if self.full:
                raise torch.OutOfMemoryError(f"failed to allocate {spec.size_bytes} bytes")
            return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))

    def write(self, payload: Tensor, host: Tensor) -> None:
        with self._runs("copy"):
            payload.copy_(host)

    def read(self, payload: Tensor, spec: TensorSpec) -> Tensor:
        return payload.clone()

    def release(self, payload: Tensor) -> None:
        pass

    def load(self, graph: Graph) -> Program:
        with self._runs("load"):
            return Program(tuple(TensorSpec(f"out{i}", a.dtype, a.shape) for i, a in enumerate(graph.args)), 100, None)

    def execute(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        with self._runs("call"), self.flag.shared_memory():
            self.in_call()
            return [2 * tensor for tensor in inputs]

    def close(self) -> None:
        self.closed += 1
