"""What is asked of a device, whatever it is: the host, the emulator or an RNGD card.

Callers hold `Buffer`s, never device tensors. A buffer's payload is read by backends alone (`graphcache/device/`, and
`trainer/device/` for the host), so no eager op can touch device memory: a device computes what its graphs do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec, Way


class Buffer:
    """A tensor in a device's memory: its shape, dtype and size are known, its values only after a download."""

    __slots__ = ("_payload", "spec")

    def __init__(self, spec: TensorSpec, payload: Any) -> None:
        self.spec = spec
        self._payload = payload

    @property
    def size_bytes(self) -> int:
        return self.spec.size_bytes


@dataclass(frozen=True)
class LoadedGraph:
    """A graph that a backend can call.

    graph:   what a call runs: of the ways of the graph that was asked for, the one that there is
    outputs: the results of a call; empty on the cpu, where only a call tells
    program: the backend's own (a function, an executor, a device module)
    way:     how calls make one of the graph that was asked for, where that is not one call of it; None where it is
    """

    graph: Graph
    outputs: tuple[TensorSpec, ...]
    program: Any
    way: Way | None = None


# Gets what a device has done (a graph's name, `upload`, `download`), and its begin and end by `time.perf_counter`.
Observer = Callable[[str, float, float], None]


class DeviceBackend(Protocol):
    """One device. All methods may be called from any thread.

    observer: hears of each call and copy, from the thread that asked for it; None: nobody does
    """

    observer: Observer | None

    @property
    def name(self) -> str:
        """For people: `cpu`, `emulator:1`, `furiosa:3`."""

    @property
    def bytes_in_use(self) -> int:
        """Bytes that live buffers hold, and loaded graphs where they are on the device."""

    @property
    def peak_bytes(self) -> int:
        """The most that `bytes_in_use` has been."""

    @property
    def calls(self) -> Mapping[str, int]:
        """How often each graph was called so far, by its name."""

    @property
    def call_secs(self) -> Mapping[str, float]:
        """Seconds that the calls of each graph have taken so far, by its name."""

    @property
    def runs_beside_others(self) -> bool:
        """Whether its graph calls may run at the same time as those of other devices, on a thread of its own."""

    @property
    def pool_bytes(self) -> int | None:
        """The pool that they must fit into. None: the host's memory, which is not counted against anything."""

    def upload(self, host: Tensor, name: str, *, lent: bool = False) -> Buffer:
        """A new buffer with the host tensor's values; `name` is for error messages.

        The copy is complete on return, so the caller may change `host` afterwards; not while the buffer lives if it is
        `lent`, so that a device in the host's memory need not hold it twice.
        Raises DeviceMemoryError, naming tensor, size and budget, when it does not fit.
        """

    def download(self, buffer: Buffer) -> Tensor:
        """The buffer's values as a new host tensor that the caller owns."""

    def take(self, buffer: Buffer) -> Tensor:
        """Download and free: the values, which the caller does not change.

        They are not copied where the device is the host.
        """

    def load(self, graph: Graph) -> LoadedGraph:
        """Make a graph callable. Raises MissingGraphsError when it is not in the cache; never compiles."""

    def call(self, loaded: LoadedGraph, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """Run a graph: arguments must have its shapes and dtypes; the results are new buffers."""

    def cut(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> tuple[Buffer, ...]:
        """The buffer's elements as pieces of these shapes, in order and without a copy. Takes the buffer.

        The pieces share its memory, which is counted piece by piece and is free for others when all of them are freed.
        """

    def views(self, buffer: Buffer, shapes: Sequence[tuple[int, ...]]) -> AbstractContextManager[tuple[Buffer, ...]]:
        """Pieces as `cut` makes them, for the block alone: the buffer stays the caller's, and no memory is counted.

        The pieces are arguments of calls; they are neither freed nor cut.
        """

    def free(self, *buffers: Buffer) -> None:
        """Give the buffers' memory back. Freeing one twice is an error of ours (assert)."""

    def close(self) -> None:
        """Free everything and let the device go."""


def check_args(graph: Graph, args: Sequence[Buffer]) -> None:
    """Check that a call's arguments are what the graph was made for; anything else is a bug of ours."""
    wanted = [(a.dtype, a.shape) for a in graph.args]
    given = [(a.spec.dtype, a.spec.shape) for a in args]
    assert wanted == given, f"{graph.name} takes {wanted}, was given {given}"


def cut_views(spec: TensorSpec, payload: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[tuple[TensorSpec, Tensor]]:
    """The pieces that `cut` makes of a buffer's tensor: views of its memory, which need no graph on any device."""
    specs = [TensorSpec(f"{spec.name} piece {i}", spec.dtype, shape) for i, shape in enumerate(shapes)]
    sizes = [piece.elements for piece in specs]
    assert sum(sizes) == spec.elements, f"{spec.name} has {spec.elements} elements, not {sum(sizes)}"
    flat = torch.split(payload.view(-1), sizes)
    return [(piece, view.view(piece.shape)) for piece, view in zip(specs, flat, strict=True)]
