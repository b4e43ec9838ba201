"""Costs from one row of a published step table: how long a step took, and how long it waited for updates."""

from __future__ import annotations

from dataclasses import replace

from trainer.plan.costs import RESIDENT_SECS_PER_ELEMENT, CostsError, StepCosts
from trainer.plan.timeline import play
from trainer.plan.work import passes, products
from trainer.step.choose import LINK_BYTES_PER_SEC
from trainer.step.schedule import Step


def from_row(step: Step, *, step_secs: float, update_wait_secs: float, workers: int) -> StepCosts:
    """Costs from a row of a step table: the device's time is shared out by products, and the updates' rate is the one
    that gives this wait.

    Raises CostsError when no rate gives it.
    """
    device = step_secs - update_wait_secs
    counts, weights = passes(step), products(step)
    unit = device / sum(counts[kind] * weights[kind] for kind in counts)
    costs = StepCosts(
        pass_secs={kind: weights[kind] * unit for kind in counts},
        copy_bytes_per_sec=LINK_BYTES_PER_SEC,
        update_secs=0.0,
        workers=workers,
        resident_secs=RESIDENT_SECS_PER_ELEMENT,
        basis=f"a step of {step_secs:g} s that waits {update_wait_secs:g} s",
    )
    return replace(costs, update_secs=_rate_that_waits(step, costs, update_wait_secs))


def _rate_that_waits(step: Step, costs: StepCosts, wait_secs: float) -> float:
    """Seconds an element, by bisection: a slower host waits longer. The rows to match come from runs in the old order,
    micro-batch by micro-batch."""
    low, high = 0.0, 1.0
    if wait_secs < 0 or play(step, replace(costs, update_secs=high), by_micro_batch=True).update_wait_secs < wait_secs:
        raise CostsError(f"no host waits {wait_secs:g} s for the updates of this step")
    for _ in range(60):
        middle = (low + high) / 2
        waited = play(step, replace(costs, update_secs=middle), by_micro_batch=True).update_wait_secs
        low, high = (middle, high) if waited < wait_secs else (low, middle)
    return high
