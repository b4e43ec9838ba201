"""A run's step time: predicted before the run begins, and compared with what its steps took. No torch.

`from_artifacts` tests the costs: the compiler's estimates and assumed host speeds. `from_own_steps` tests the model: it
plays the step with the costs that the run's own steps show. docs/placement.md derives the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from graphcache.device.backend_name import parse
from trainer.config import RunConfig
from trainer.plan.costs import CostsError, StepCosts
from trainer.plan.estimates import from_estimates
from trainer.plan.run_costs import from_run
from trainer.plan.timeline import Timeline, play
from trainer.step.schedule import Step


@dataclass(frozen=True)
class Prediction:
    """timeline: None where nothing can be told; basis: where the costs are from, or why there are none."""

    timeline: Timeline | None
    basis: str

    @property
    def step_secs(self) -> float | None:
        return None if self.timeline is None else self.timeline.step_secs

    def as_json(self) -> dict[str, Any]:
        return {"step_secs": self.step_secs, "basis": self.basis}


def from_artifacts(
    step: Step, estimates: Mapping[str, int] | None, config: RunConfig, *, workers: int, in_turns: bool
) -> Prediction:
    """What a step should take by the compiler's estimates of device time.

    estimates: nanoseconds of a call by graph name; None where graphs do not come from the cache
    in_turns:  whether devices wait for one another's calls
    """
    if estimates is None:
        return Prediction(None, "the host computes in place of a card, and no estimate tells its speed")
    if parse(config.backend)[0] == "emulator" and config.emulated_time is None:
        return Prediction(None, "the emulator takes the host's time: --emulated-time gives it a card's")
    try:
        costs = from_estimates(step, estimates, workers, "the compiler's estimates")
    except CostsError as error:
        return Prediction(None, error.message)
    costs = _as_emulated(costs, config)
    return Prediction(play(step, costs, in_turns=in_turns), costs.basis)


def from_own_steps(
    step: Step,
    records: Sequence[Mapping[str, Any]],
    call_secs: Mapping[str, float],
    *,
    workers: int,
    in_turns: bool,
) -> tuple[Prediction, float | None]:
    """A step played with the costs that a run's `records` show, and the median step time that it should give.

    call_secs: mean seconds of a call by graph name
    The first step, which loads, counts in neither.
    """
    measured = median(record["step_secs"] for record in records[1:]) if len(records) > 1 else None
    try:
        costs = from_run(step, records, workers, call_secs)
    except CostsError as error:
        return Prediction(None, error.message), measured
    return Prediction(play(step, costs, in_turns=in_turns), costs.basis), measured


def _as_emulated(costs: StepCosts, config: RunConfig) -> StepCosts:
    """The costs as `--emulated-time` and `--emulated-link` scale them."""
    if config.emulated_time is None:
        return costs
    return replace(costs.slower(config.emulated_time), copy_bytes_per_sec=config.emulated_link * 1e9)
