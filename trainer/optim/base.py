"""What the training loop asks of an optimizer, and what an optimizer asks of the parameters that it updates.

A step, seen from here:

    optimizer.begin_step(step, lr)        once the loss of the step's last micro-batch is known to be finite
    optimizer.submit(unit)                for every unit, top of the model first, as soon as its gradients are final
    report = optimizer.finish_step()      a barrier: every weight of the next forward pass is in place

The first error of a worker is raised, with its own traceback, by the next `submit` or `finish_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from graphcache.device.base import Buffer, DeviceBackend

# A piece of one parameter's gradient: flat, in the compute dtype. A parameter's pieces laid end to end are the flat
# parameter. A Tensor is on the host already, a Buffer must be downloaded or used where it is.
Piece = Buffer | Tensor


@dataclass(frozen=True)
class Parameter:
    """One tensor that is trained. `name` is short, within its unit; decay applies to matrices alone."""

    name: str
    shape: tuple[int, ...]

    @property
    def decays(self) -> bool:
        return len(self.shape) > 1


@dataclass
class AdamState:
    """One parameter's state on the host: float32, flat, [n] each."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class Unit(Protocol):
    """Parameters that are updated together (a decoder layer, the head, the embedding), and where their weights are."""

    @property
    def name(self) -> str:
        """`model.layers.3`"""

    @property
    def prefix(self) -> str:
        """What a parameter's name begins with in a checkpoint: `model.layers.3.`, or nothing."""

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    @property
    def backend(self) -> DeviceBackend | None:
        """The device of the weights; None when they are on the host alone."""

    def drop_weights(self) -> None:
        """Free the device's copies of the weights: nothing reads them between the last backward and the update."""

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        """Each parameter's name with the pieces of its gradient over the step, cast and cut as the AdamW graphs take
        them.

        Frees the unit's accumulators as it goes. It calls graphs, so the thread of the unit's device iterates; pieces
        that are Buffers are the caller's to free.
        """

    def place(self, name: str) -> Tensor:
        """Where a parameter's new weight is to be written: flat, in the compute dtype, on the host. Any thread."""

    def install(self, name: str) -> None:
        """Make what was written there the weight of the next forward pass. Once for each `place`; any thread."""


@runtime_checkable
class ResidentUnit(Unit, Protocol):
    """A unit whose new weights can be made where they are used: its matrices' state may be `resident` there."""

    @property
    def resident(self) -> bool: ...

    @property
    def backend(self) -> DeviceBackend: ...

    def install_tiles(self, name: str, tiles: Sequence[Buffer]) -> None:
        """What `install` does, from flat tiles that are on the unit's device already. Takes the tiles. Main thread."""


@dataclass(frozen=True)
class UpdateReport:
    """What one step's update cost.

    wait_secs: how long `finish_step` held the main thread; busy_secs: the updates' own time, summed over workers
    grad_norm: L2 norm of all gradients, and clip_factor what they were multiplied by; None, 1.0 without `--clip-norm`
    """

    wait_secs: float
    busy_secs: float
    grad_norm: float | None
    clip_factor: float


class Optimizer(Protocol):
    """AdamW over units: offload keeps the state on the host, resident on the unit's device."""

    def observe(self, observer: Callable[[str, float, float], None] | None) -> None:
        """Have it hear of each update on the host: name, begin and end by `time.perf_counter`. None: nobody does."""

    def adopt(self, unit: Unit, states: Mapping[str, AdamState]) -> None:
        """Keep this unit's state from now on; it takes the tensors over. The unit's weights are installed already."""

    def begin_step(self, step: int, lr: float) -> None:
        """Scalars of the step, which counts from 1."""

    def submit(self, unit: Unit) -> None:
        """Start the unit's update, or hold it back until the norm is known under `--clip-norm`.

        By the thread of the unit's device, beside those of other devices.
        """

    def finish_step(self) -> UpdateReport:
        """Wait until every submitted unit's new weights are installed."""

    def state(self, unit: Unit) -> dict[str, AdamState]:
        """The unit's state, for a checkpoint: valid between `finish_step` and the next `begin_step`. Never a copy of
        what is on the host already; downloaded from a device otherwise."""

    def close(self) -> None:
        """End the workers and free the state. Never hides an error that is on its way."""
