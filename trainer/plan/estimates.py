"""Costs from the compiler's estimates of device time: of a manifest's graphs, or of artifacts in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphcache.errors import headline
from graphcache.manifest.manifest import Manifest
from trainer.plan.costs import HOST_UPDATE_SECS, RESIDENT_SECS_PER_ELEMENT, CostsError, StepCosts
from trainer.plan.work import layer_update_calls, pass_calls, passes, update_elements
from trainer.step.choose import LINK_BYTES_PER_SEC
from trainer.step.schedule import Step, Update


def of_manifest(manifest: Manifest) -> dict[str, int]:
    """Estimated nanoseconds of a call, by graph name, for the graphs that were compiled."""
    return {
        each.graph.name: each.compiled.estimate_ns * (1 if each.way is None else each.way.calls)
        for each in manifest.graphs
        if each.compiled is not None and each.compiled.estimate_ns is not None
    }


def from_estimates(step: Step, estimates: Mapping[str, int], workers: int, basis: str) -> StepCosts:
    """A pass takes the sum of its calls' estimates. What the host costs is assumed (HOST_UPDATE_SECS).

    Raises CostsError naming the graphs that have no estimate.
    """
    kinds = tuple(passes(step))
    later = {kind: pass_calls(step, kind, first=False) for kind in kinds}
    first = {kind: pass_calls(step, kind, first=True) for kind in kinds}
    missing = sorted({name for calls in (*later.values(), *first.values()) for name in calls} - estimates.keys())
    if missing:
        raise CostsError(
            f"{basis} has no estimate for {headline(', '.join(missing))}",
            hint="build the graphs of this sequence and micro-batch, or give the costs of a run: --from RUN",
        )
    cast = _layer_secs(step, estimates, resident=False) or 0.0
    resident = _layer_secs(step, estimates, resident=True)
    return StepCosts(
        pass_secs={kind: _secs(calls, estimates) for kind, calls in later.items()},
        first_secs={kind: _secs(calls, estimates) for kind, calls in first.items()},
        copy_bytes_per_sec=LINK_BYTES_PER_SEC,
        update_secs=HOST_UPDATE_SECS,
        workers=workers,
        resident_secs=cast + RESIDENT_SECS_PER_ELEMENT if resident is None else resident,
        cast_secs=cast,
        basis=f"{basis}; host updates at {1e9 * HOST_UPDATE_SECS:g} ns an element and worker",
    )


def _secs(calls: Counter[str], estimates: Mapping[str, int]) -> float:
    return sum(count * estimates[name] for name, count in calls.items()) / 1e9


def _layer_secs(step: Step, estimates: Mapping[str, int], *, resident: bool) -> float | None:
    """For one element of a layer's update; None where an estimate is missing."""
    calls = layer_update_calls(step, resident=resident)
    if not calls.keys() <= estimates.keys():
        return None
    return _secs(calls, estimates) / update_elements(step, Update(0, resident))
