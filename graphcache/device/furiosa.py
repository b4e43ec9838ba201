"""A real RNGD card, for both releases of the vendor. Nothing here was run on one: what leads to the first call was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphcache.device.backend_name import POOL_BYTES
from graphcache.device.card import ArtifactSource, Program, check_signature
from graphcache.device.guard import MemoryFlag
from graphcache.graph import Graph, TensorSpec
from graphcache.runtime import furiosa


class FuriosaCard:
    """See `Card`. A payload is a device tensor, which stays inside this package.

    name:   `furiosa:3`, by the card's own number
    index:  the library's number of the device: a position among the devices that it sees
    fusion: PEs that the artifacts were compiled for; one for the process
    """

    def __init__(
        self, artifact_of: ArtifactSource, *, name: str, index: int, fusion: int, pool_bytes: int = POOL_BYTES
    ) -> None:
        """Touches no card yet: the first allocation, or the first loaded graph, opens it. Raises FusionError."""
        # Before anything that reads the fusion, which would fix it at 1.
        furiosa.set_fusion(fusion)
        furiosa.register()
        self.name = name
        self.pool_bytes = pool_bytes
        self.flag: MemoryFlag = furiosa
        self._artifact_of = artifact_of
        self._device = torch.device(furiosa.device_type(), index)

    def allocate(self, spec: TensorSpec) -> Tensor:
        with furiosa.card_errors(f"{spec.size_bytes} bytes could not be allocated on"):
            return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self._device)

    def write(self, payload: Tensor, host: Tensor) -> None:
        # Device tensors are row-major, so that a copy moves bytes and nothing else.
        with furiosa.card_errors("a tensor could not be copied to"):
            payload.copy_(host.contiguous())

    def read(self, payload: Tensor, spec: TensorSpec) -> Tensor:
        with furiosa.card_errors("a tensor could not be copied from"):
            return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)).copy_(payload)

    def release(self, payload: Tensor) -> None:
        """Memory goes back when the last reference to the tensor goes, and the buffer's is the last."""

    def load(self, graph: Graph) -> Program:
        artifact = self._artifact_of(graph)
        way = check_signature(graph, artifact.args)
        runnable = furiosa.deserialize(artifact.runnable)
        args, _ = furiosa.signature(runnable)
        check_signature(way.graph, args)
        return Program(artifact.outputs, len(artifact.runnable), furiosa.load_on(runnable, self._device), way)

    def execute(self, program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return furiosa.call(program.native, inputs)

    def close(self) -> None:
        """The vendor lets a device go when the process ends; there is no call for it."""
