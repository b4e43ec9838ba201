"""A card made of the vendor's host executor, a memory pool, and the memory type flag with its fault.

It runs an artifact's own lowered graph, so what it computes is the vendor's program and not torch's; and it fails as a
card does: allocations when the pool is full, and any allocation while some graph call has the flag at DRAM_SHARED. The
flag is the vendor's real one where that is shared by threads (2026.2), else one emulated here.

What it does not show: a card's speed, its flush of subnormals to zero, the scratch memory of a running graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from graphcache.device.card import CARD_PES, POOL_BYTES, ArtifactSource, Program, check_signature, describe
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
        """Asked like the vendor's: set here, read in another thread."""
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
    ) -> None:
        """Raises FusionError when this process has used the vendor under another fusion."""
        # Before anything that reads the fusion, which would fix it at 1.
        furiosa.set_fusion(fusion)
        self.name = name
        self.pool_bytes = pool_bytes
        self.flag: MemoryFlag = flag or process_flag()
        self._artifact_of = artifact_of
        self._eager = frozenset(eager_catalogs)
        self._used_bytes = 0
        self._count = threading.Lock()

    def allocate(self, spec: TensorSpec) -> Tensor:
        self._take(spec.size_bytes)
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))

    def write(self, payload: Tensor, host: Tensor) -> None:
        payload.copy_(host)

    def read(self, payload: Tensor, spec: TensorSpec) -> Tensor:
        return payload.clone(memory_format=torch.contiguous_format)

    def release(self, payload: Tensor) -> None:
        self._give_back(payload.nbytes)

    def load(self, graph: Graph) -> Program:
        if graph.catalog in self._eager:
            return _eager_program(graph)
        artifact = self._artifact_of(graph)
        check_signature(graph, artifact.args)
        size_bytes = len(artifact.runnable)
        self._take(size_bytes)
        return Program(artifact.outputs, size_bytes, furiosa.HostExecutor.of(artifact).execute)

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
