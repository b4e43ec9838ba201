"""What the operations of a step cost, in what a host and a device do: seconds of a pass, bytes and elements a second.

Costs come from a run's files (`from_run`), the compiler's estimates (`trainer.plan.estimates`), one row of a step table
(`trainer.plan.step_row`), or a data sheet (`assumed`). docs/placement.md derives the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from graphcache.errors import UsageError
from trainer.architecture.parameters import parameter_shapes
from trainer.catalogs.head import Chunks
from trainer.step.choose import LINK_BYTES_PER_SEC, PRODUCTS_PER_SEC
from trainer.step.schedule import BACKWARD, FORWARD, HEAD, Pass, Step, Update

# The compiler's estimate for AdamW's tile of 8,388,608 elements, for each element (docs/results/adamw-tiles.md).
RESIDENT_SECS_PER_ELEMENT = 34.3e-12
# A worker's seconds for an element with its copies, from an offload row of Llama-3.1-8B (docs/placement.md).
HOST_UPDATE_SECS = 1.07e-9
# Products of a pass for each weight and token: backward recomputes the layer, then two more for each.
PRODUCTS = {FORWARD: 1, BACKWARD: 3, HEAD: 3}


class CostsError(UsageError):
    """Costs that cannot be told from what was given."""

    name = "costs"


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Costs of one device and of the host beside it.

    pass_secs:            a pass of one micro-batch on a device: `forward` and `backward` of one layer, the whole `head`
    copy_bytes_per_sec:   of an activation's upload or download
    update_secs:          a worker's seconds for one element of a host update, with its gradient's download and the new
                          weight's upload
    workers:              update workers
    resident_secs:        a device's seconds for one element of a resident update
    basis:                where the figures are from, for people
    """

    pass_secs: Mapping[str, float]
    copy_bytes_per_sec: float
    update_secs: float
    workers: int
    resident_secs: float
    basis: str

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"pass_secs": dict(self.pass_secs)}


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


def passes(step: Step) -> Counter[str]:
    """How many passes of each kind a step makes, over all micro-batches and devices."""
    once = Counter(work.kind for stage in step.stages for work in stage.work if isinstance(work, Pass))
    return Counter({kind: count * step.micro_batches for kind, count in once.items()})


def update_elements(step: Step, update: Update) -> int:
    """Elements that the update is of; what a resident one still does on the host (vectors) is not counted there."""
    if isinstance(update.of, int):
        shapes = parameter_shapes(step.model).values()
        return sum(math.prod(shape) for shape in shapes if not update.resident or len(shape) > 1)
    return step.model.hidden if update.of == "norm" else step.model.vocab * step.model.hidden


def host_elements(step: Step) -> int:
    """Elements that the host updates in a step."""
    updates = (update for stage in step.stages for update in stage.updates)
    return sum(update_elements(step, update) for update in updates if not update.resident)


def from_run(step: Step, records: Sequence[Mapping[str, Any]], workers: int) -> StepCosts:
    """Costs from a run's steps.jsonl, the first step left out, which loads. `step`: as that run's was.

    Raises CostsError for fewer than two steps.
    """
    if len(records) < 2:
        raise CostsError("a run of one step tells no costs", hint="let it do three steps at least")
    kept = records[1:]
    counts = passes(step)
    pass_secs = {
        kind: median(record["phase_secs"].get(kind, 0.0) for record in kept) / count for kind, count in counts.items()
    }
    busy = median(float(record["update_busy_secs"]) for record in kept)
    return StepCosts(
        pass_secs=pass_secs,
        copy_bytes_per_sec=_copy_rate(step, kept),
        update_secs=busy / max(1, host_elements(step)),
        workers=workers,
        resident_secs=RESIDENT_SECS_PER_ELEMENT,
        basis=f"{len(kept)} steps of a run",
    )


def _copy_rate(step: Step, records: Sequence[Mapping[str, Any]]) -> float:
    """From downloads, which a device's thread waits for; uploads are begun beside its work."""
    copies = sum(type(work).__name__ == "Leave" for stage in step.stages for work in stage.work) * step.micro_batches
    secs = median(float(record["phase_secs"].get("download", 0.0)) for record in records)
    return copies * step.activation.size_bytes / secs if copies and secs > 0 else LINK_BYTES_PER_SEC


def products(step: Step) -> dict[str, float]:
    """Products of a pass of each kind through one layer, or the head, in proportion."""
    layer = sum(math.prod(shape) for shape in parameter_shapes(step.model).values() if len(shape) > 1)
    chunks = Chunks.of(step.model.vocab)
    head = chunks.count * chunks.rows * step.model.hidden
    return {kind: PRODUCTS[kind] * (head if kind == HEAD else layer) for kind in (FORWARD, BACKWARD, HEAD)}
