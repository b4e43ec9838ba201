"""What the guarded backend needs of a card, be it the emulator's or a real one. Nothing here takes turns or counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from graphcache.artifact import Artifact
from graphcache.device.guard import MemoryFlag
from graphcache.errors import CorruptError
from graphcache.graph import Graph, TensorSpec, Way
from graphcache.way import way_for

CARD_PES = 8

# Gives a graph's artifact, from a store. Raises MissingGraphsError.
ArtifactSource = Callable[[Graph], Artifact]


@dataclass(frozen=True)
class Program:
    """A graph on a card: the results that a call gives, the bytes that it takes while loaded, the card's own object.

    way: what of the graph that was asked for it is; None for the graph itself
    """

    outputs: tuple[TensorSpec, ...]
    size_bytes: int
    native: Any
    way: Way | None = None


class Card(Protocol):
    """A device's memory and its graphs. A `payload` is the card's own object for an allocated tensor."""

    name: str
    pool_bytes: int
    flag: MemoryFlag

    def allocate(self, spec: TensorSpec) -> Any:
        """A payload of unset values. Raises torch.OutOfMemoryError."""

    def write(self, payload: Any, host: Tensor) -> None:
        """Copies the host's values; complete on return."""

    def read(self, payload: Any, spec: TensorSpec) -> Tensor:
        """The values as a new host tensor."""

    def release(self, payload: Any) -> None:
        """Gives its memory back."""

    def load(self, graph: Graph) -> Program:
        """Raises MissingGraphsError, CorruptError, torch.OutOfMemoryError. Never compiles."""

    def execute(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """Payloads of the results, as `program.outputs` describes them. Raises torch.OutOfMemoryError."""

    def close(self) -> None:
        """Lets everything go."""


def check_signature(graph: Graph, args: Sequence[TensorSpec]) -> Way:
    """The way of a graph that takes what an artifact does.

    Raises CorruptError when none does: the store served another graph's artifact.
    """
    way = way_for(graph, args)
    if way is None:
        wanted, found = ([(a.dtype, a.shape) for a in specs] for specs in (graph.args, args))
        raise CorruptError(f"the artifact of {graph.name} takes {found}, the graph {wanted}")
    return way


def describe(tensor: Tensor, name: str) -> TensorSpec:
    """A tensor's dtype and shape under `name`."""
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
