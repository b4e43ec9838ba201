"""Costs from the compiler's estimates of device time: of a manifest's graphs, or of artifacts in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphcache.errors import headline
from graphcache.manifest.manifest import Manifest
from trainer.catalogs import head as head_catalog
from trainer.catalogs import layer as layer_catalog
from trainer.model.ops import graph_calls
from trainer.plan.costs import HOST_UPDATE_SECS, RESIDENT_SECS_PER_ELEMENT, CostsError, StepCosts, passes
from trainer.step.choose import LINK_BYTES_PER_SEC
from trainer.step.schedule import BACKWARD, FORWARD, HEAD, Pass, Step


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
    names = _graph_names(step)
    kinds = passes(step)
    calls = {kind: _calls_of_a_pass(step, kind) for kind in kinds}
    needed = {names[kind, part] for kind, parts in calls.items() for part in parts}
    missing = sorted(needed - estimates.keys())
    if missing:
        raise CostsError(
            f"{basis} has no estimate for {headline(', '.join(missing))}",
            hint="build the graphs of this sequence and micro-batch, or give the costs of a run: --from RUN",
        )
    return StepCosts(
        pass_secs={
            kind: sum(count * estimates[names[kind, part]] for part, count in parts.items()) / 1e9
            for kind, parts in calls.items()
        },
        copy_bytes_per_sec=LINK_BYTES_PER_SEC,
        update_secs=HOST_UPDATE_SECS,
        workers=workers,
        resident_secs=RESIDENT_SECS_PER_ELEMENT,
        basis=f"{basis}; host updates at {1e9 * HOST_UPDATE_SECS:g} ns an element and worker",
    )


def _graph_names(step: Step) -> dict[tuple[str, str], str]:
    """The name of the graph that each part of a pass calls."""
    layer, head = layer_catalog.parts(step.model, step.options), head_catalog.parts(step.model, step.options)
    found = {(kind, part): graph.name for kind in (FORWARD, BACKWARD) for part, graph in layer.items()}
    return found | {(HEAD, part): graph.name for part, graph in head.items()}


def _calls_of_a_pass(step: Step, kind: str) -> Counter[str]:
    """Calls by graph in one pass over a micro-batch, not the first: that one has no accumulators to add to."""
    works = (work for stage in step.stages for work in stage.work)
    one = next(work for work in works if isinstance(work, Pass) and work.kind == kind)
    return graph_calls(step.ops(one, micro_batch=1))
