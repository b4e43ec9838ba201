"""A card made of the vendor's host executor, a memory pool, and the memory type flag with its fault.

It runs an artifact's own lowered graph, so what it computes is the vendor's program and not torch's; and it fails as a
card does: allocations when the pool is full, and any allocation while some graph call has the flag at DRAM_SHARED. The
flag is the vendor's real one where that is shared by threads (2026.2), else one emulated here.

Calls and copies take what they take on the host, or, if asked for, an emulated time (`emulated_time`).
What it does not show: a card's flush of subnormals to zero, the scratch memory of a running graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from graphcache.device.backend_name import POOL_BYTES
from graphcache.device.card import CARD_PES, ArtifactSource, Program, check_signature, describe
from graphcache.device.emulated_time import EmulatedTime, Link, at_least
from graphcache.device.guard import MemoryFlag
from graphcache.graph import Graph, TensorSpec
from graphcache.runtime import furiosa


class EmulatedFlag:
    """The memory type flag of 2026.2: one for the process, set to and fro with no regard for other threads."""

    def __init__(self) -> None:
        self._shared = False

    def memory_is_shared(self) -> bool:
        return self._shared

    @contextmanager
    def shared_memory(self) -> Iterator[None]:
        before, self._shared = self._shared, True
        try:
            yield
        finally:
            self._shared = before

    def flag_is_shared_by_threads(self) -> bool:
        """Whether a flag set in this thread is seen by another, tested the way the vendor's is."""
        seen: list[bool] = []
        reader = threading.Thread(target=lambda: seen.append(self.memory_is_shared()))
        with self.shared_memory():
            reader.start()
            reader.join()
        return seen != [False]


_emulated = EmulatedFlag()


def process_flag() -> MemoryFlag:
    """The vendor's flag where threads share it, else an emulated one that they share."""
    return furiosa if furiosa.flag_is_shared_by_threads() else _emulated


class EmulatedCard:
    """See `Card`. A payload is a host tensor, which stays inside this package.

    fusion:         PEs that the artifacts were compiled for; one for the process
    eager_catalogs: catalogs whose graphs run eagerly on the host instead of from artifacts: for models whose layers
                    are not compiled, while the optimizer's graphs are the real ones
    timing:         what calls and copies take; None: what the host takes. With it the flag is the installed runtime's,
                    so that calls of several cards run at the same time where they would on cards
    """

    def __init__(
        self,
        artifact_of: ArtifactSource,
        *,
        name: str = "emulator",
        fusion: int = CARD_PES,
        pool_bytes: int = POOL_BYTES,
        flag: MemoryFlag | None = None,
        eager_catalogs: Collection[str] = (),
        timing: EmulatedTime | None = None,
    ) -> None:
        """Raises FusionError when this process has used the vendor under another fusion."""
        # Before anything that reads the fusion, which would fix it at 1.
        furiosa.set_fusion(fusion)
        self.name = name
        self.pool_bytes = pool_bytes
        self.flag: MemoryFlag = flag or (process_flag() if timing is None else furiosa)
        self._artifact_of = artifact_of
        self._eager = frozenset(eager_catalogs)
        self._timing = timing
        self._link = None if timing is None else Link(timing.link_bytes_per_sec)
        self._computes = timing is None or timing.arithmetic
        self._used_bytes = 0
        self._count = threading.Lock()

    def allocate(self, spec: TensorSpec) -> Tensor:
        self._take(spec.size_bytes)
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) if self._computes else _ones(spec)

    def write(self, payload: Tensor, host: Tensor) -> None:
        with self._copy("to", payload):
            if self._computes:
                payload.copy_(host)

    def read(self, payload: Tensor, spec: TensorSpec) -> Tensor:
        with self._copy("from", payload):
            return payload.clone(memory_format=torch.contiguous_format)

    def release(self, payload: Tensor) -> None:
        self._give_back(payload.nbytes)

    def load(self, graph: Graph) -> Program:
        if graph.catalog in self._eager:
            return self._timed(graph, _eager_program(graph))
        artifact = self._artifact_of(graph)
        way = check_signature(graph, artifact.args)
        size_bytes = len(artifact.runnable)
        self._take(size_bytes)
        run = furiosa.HostExecutor.of(artifact).execute if self._computes else None
        return self._timed(way.graph, Program(artifact.outputs, size_bytes, run, way))

    def _timed(self, graph: Graph, program: Program) -> Program:
        """The program with its time, if that is emulated. Raises NoEstimateError."""
        if self._timing is None:
            return program
        secs, outputs, run = self._timing.call_secs(graph), program.outputs, program.native
        if not self._computes:

            def run(_inputs: Sequence[Tensor]) -> list[Tensor]:
                return [_ones(spec) for spec in outputs]

        def timed(inputs: Sequence[Tensor]) -> list[Tensor]:
            with at_least(secs):
                results: list[Tensor] = run(inputs)
            return results

        return replace(program, native=timed)

    def _copy(self, direction: str, payload: Tensor) -> AbstractContextManager[None]:
        return nullcontext() if self._link is None else self._link.copy(direction, payload.nbytes)

    def execute(self, program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
        size_bytes = sum(spec.size_bytes for spec in program.outputs)
        self._take(size_bytes)
        run: Callable[[Sequence[Tensor]], list[Tensor]] = program.native
        try:
            with self.flag.shared_memory():
                return run(inputs)
        except BaseException:
            self._give_back(size_bytes)
            raise

    def close(self) -> None:
        """Nothing to let go of: host tensors go with the buffers."""

    def _give_back(self, size_bytes: int) -> None:
        with self._count:
            self._used_bytes -= size_bytes

    def _take(self, size_bytes: int) -> None:
        """Counts an allocation, or fails with the facts of the vendor's message."""
        if self.flag.memory_is_shared():
            raise torch.OutOfMemoryError(
                f"failed to allocate {size_bytes} bytes on DRAM_SHARED (in use: 0, capacity: 0)"
            )
        with self._count:
            if self._used_bytes + size_bytes > self.pool_bytes:
                raise torch.OutOfMemoryError(
                    f"failed to allocate {size_bytes} bytes on DRAM "
                    f"(in use: {self._used_bytes}, capacity: {self.pool_bytes})"
                )
            self._used_bytes += size_bytes


def _ones(spec: TensorSpec) -> Tensor:
    """A tensor of the right shape that takes no memory. Not zeros, of which a loss and its gradients are none."""
    return torch.ones((), dtype=getattr(torch, spec.dtype)).expand(spec.shape)


def _eager_program(graph: Graph) -> Program:
    """The graph's own function; its results' shapes come from a run on tensors without memory."""
    function = graph.load_function()

    @torch.no_grad()
    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        results = function(*inputs, **graph.constants)
        return [results] if isinstance(results, Tensor) else list(results)

    with FakeTensorMode():
        fakes = run([torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in graph.args])
    return Program(tuple(describe(fake, f"out{i}") for i, fake in enumerate(fakes)), 0, run)
