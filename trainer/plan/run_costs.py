"""Costs from what a run's steps took: phases of each step, and the mean time of a call by graph. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from trainer.plan.costs import RESIDENT_SECS_PER_ELEMENT, CostsError, StepCosts
from trainer.plan.work import host_elements, layer_update_calls, pass_calls, passes, update_elements, updates
from trainer.step.choose import LINK_BYTES_PER_SEC
from trainer.step.schedule import Step, Update

Records = Sequence[Mapping[str, Any]]


def from_run(step: Step, records: Records, workers: int, call_secs: Mapping[str, float] | None = None) -> StepCosts:
    """Costs from a run's steps.jsonl, the first step left out, which loads. `step`: as that run's was.

    call_secs: mean seconds of a call by graph name, which tell the first micro-batch from later ones and a resident
               update from one on the host; without them each is a share of its phase
    Raises CostsError for fewer than two steps.
    """
    if len(records) < 2:
        raise CostsError("a run of one step tells no costs", hint="let it do three steps at least")
    kept, known = records[1:], call_secs or {}
    pass_secs, first_secs = _pass_secs(step, kept, known)
    return StepCosts(
        pass_secs=pass_secs,
        first_secs=first_secs,
        copy_bytes_per_sec=_copy_rate(step, kept),
        update_secs=median(float(record["update_busy_secs"]) for record in kept) / max(1, host_elements(step)),
        workers=workers,
        **_device_update_secs(step, _phase_secs(kept, "gradients"), known),
        basis=f"{len(kept)} steps of a run",
        measured_updates=True,
    )


def _phase_secs(records: Records, phase: str) -> float:
    return median(float(record["phase_secs"].get(phase, 0.0)) for record in records)


def _pass_secs(step: Step, records: Records, known: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Of later micro-batches and of the first one: their own calls, and the same share of all else."""
    later, first = {}, {}
    for kind, count in passes(step).items():
        in_all = _phase_secs(records, kind)
        later[kind] = first[kind] = in_all / count
        begins = _secs_of(pass_calls(step, kind, first=True), known)
        follows = _secs_of(pass_calls(step, kind, first=False), known)
        if begins is None or follows is None:
            continue
        share = 1 / step.micro_batches
        others = in_all / count - share * begins - (1 - share) * follows
        later[kind], first[kind] = follows + others, begins + others
    return later, first


def _secs_of(calls: Counter[str], known: Mapping[str, float]) -> float | None:
    """None where the time of a graph's call is not known."""
    return sum(count * known[name] for name, count in calls.items()) if calls.keys() <= known.keys() else None


def _device_update_secs(step: Step, gradients_secs: float, known: Mapping[str, float]) -> dict[str, float]:
    """What updates cost the device, by field of StepCosts."""
    resident_elements = sum(update_elements(step, update) for update in updates(step) if update.resident)
    layers = sum(isinstance(update.of, int) for update in updates(step))
    cast = _layer_secs(step, known, resident=False) or 0.0
    resident = _layer_secs(step, known, resident=True)
    if resident is None:
        resident = cast + RESIDENT_SECS_PER_ELEMENT
    host_layers = layers * update_elements(step, Update(0)) - resident_elements
    calls_secs = cast * max(0, host_layers) + resident * resident_elements
    handling = max(0.0, gradients_secs - calls_secs) / (host_elements(step) + resident_elements)
    return {"cast_secs": cast, "resident_secs": resident, "handling_secs": handling}


def _layer_secs(step: Step, known: Mapping[str, float], *, resident: bool) -> float | None:
    """For one element of a layer's update, by its graph calls."""
    secs = _secs_of(layer_update_calls(step, resident=resident), known)
    return None if secs is None else secs / update_elements(step, Update(0, resident))


def _copy_rate(step: Step, records: Records) -> float:
    """From downloads, which a device's thread waits for; uploads are begun beside its work."""
    copies = sum(type(work).__name__ == "Leave" for stage in step.stages for work in stage.work) * step.micro_batches
    secs = _phase_secs(records, "download")
    return copies * step.activation.size_bytes / secs if copies and secs > 0 else LINK_BYTES_PER_SEC
