"""What the operations of a step cost, in what a host and a device do: seconds of a pass, bytes and elements a second.

Costs come from a run's files (`trainer.plan.run_costs`), the compiler's estimates (`trainer.plan.estimates`), a
calibration of the host (`trainer.plan.calibration`), one row of a step table (`trainer.plan.step_row`), or a data sheet
(`assumed`). docs/placement.md derives the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphcache.errors import UsageError
from trainer.plan.work import products
from trainer.step.choose import LINK_BYTES_PER_SEC, PRODUCTS_PER_SEC
from trainer.step.schedule import Step

# The compiler's estimate for AdamW's tile of 8,388,608 elements, for each element (docs/results/adamw-tiles.md).
RESIDENT_SECS_PER_ELEMENT = 34.3e-12
# A worker's seconds for an element with its copies, from an offload row of Llama-3.1-8B (docs/placement.md).
HOST_UPDATE_SECS = 1.07e-9


class CostsError(UsageError):
    """Costs that cannot be told from what was given."""

    name = "costs"


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Costs of one device and of the host beside it.

    pass_secs:            a pass of one micro-batch on a device: `forward` and `backward` of one layer, the whole `head`
    first_secs:           the same for a step's first micro-batch, which adds to no accumulators; where it is not told,
                          as any other
    copy_bytes_per_sec:   of an activation's upload or download
    update_secs:          a worker's seconds for one element of a host update, with its gradient's download and the new
                          weight's upload
    workers:              update workers
    resident_secs:        a device's seconds for one element of a layer's resident update
    cast_secs:            a device's seconds for one element of a layer's host update: the gradient is rounded there
    handling_secs:        seconds of the device's thread for one element of any update, beside those
    busy_call_secs:       what a call takes longer while workers update, since its thread waits for a CPU
    basis:                where the figures are from, for people
    measured_updates:     whether update_secs and copy_bytes_per_sec were measured, with `workers`
    """

    pass_secs: Mapping[str, float]
    first_secs: Mapping[str, float] = field(default_factory=dict)
    copy_bytes_per_sec: float
    update_secs: float
    workers: int
    resident_secs: float
    cast_secs: float = 0.0
    handling_secs: float = 0.0
    busy_call_secs: float = 0.0
    basis: str
    measured_updates: bool = False

    def of_pass(self, kind: str, *, first: bool) -> float:
        """Seconds of a pass of a step's `first` micro-batch, or of a later one."""
        return self.first_secs.get(kind, self.pass_secs[kind]) if first else self.pass_secs[kind]

    def of_device_update(self, *, resident: bool, layer: bool) -> float:
        """Seconds that a device is kept by one element of an update."""
        return self.handling_secs + (self.resident_secs if resident else self.cast_secs if layer else 0.0)

    def slower(self, factor: float) -> StepCosts:
        """With a device whose calls take `factor` times as long."""

        def slow(secs: Mapping[str, float]) -> dict[str, float]:
            return {kind: factor * each for kind, each in secs.items()}

        return replace(
            self,
            pass_secs=slow(self.pass_secs),
            first_secs=slow(self.first_secs),
            resident_secs=factor * self.resident_secs,
            cast_secs=factor * self.cast_secs,
        )

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"pass_secs": dict(self.pass_secs), "first_secs": dict(self.first_secs)}


def assumed(step: Step, workers: int) -> StepCosts:
    """Costs when nothing was measured: a third of what the card's data sheet says, and HOST_UPDATE_SECS."""
    tokens = step.options.micro_batch * step.options.sequence
    return StepCosts(
        pass_secs={kind: 2 * count * tokens / PRODUCTS_PER_SEC for kind, count in products(step).items()},
        copy_bytes_per_sec=LINK_BYTES_PER_SEC,
        update_secs=HOST_UPDATE_SECS,
        workers=workers,
        resident_secs=RESIDENT_SECS_PER_ELEMENT,
        basis=f"a third of the data sheet's speed; host updates at {1e9 * HOST_UPDATE_SECS:g} ns an element and worker",
    )
