"""How much there is of what a step costs: passes, graph calls, elements that are updated. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from trainer.architecture.parameters import parameter_shapes
from trainer.catalogs import head as head_catalog
from trainer.catalogs import layer as layer_catalog
from trainer.catalogs.head import Chunks
from trainer.model.ops import graph_calls
from trainer.step.schedule import BACKWARD, FORWARD, HEAD, Pass, Step, Update

# Products of a pass for each weight and token: backward recomputes the layer, then two more for each.
PRODUCTS = {FORWARD: 1, BACKWARD: 3, HEAD: 3}


def passes(step: Step) -> Counter[str]:
    """How many passes of each kind a step makes, over all micro-batches and devices."""
    once = Counter(work.kind for stage in step.stages for work in stage.work if isinstance(work, Pass))
    return Counter({kind: count * step.micro_batches for kind, count in once.items()})


def pass_calls(step: Step, kind: str, *, first: bool) -> Counter[str]:
    """Calls by graph name in a pass of this kind, of a step's first micro-batch or of a later one, which adds to
    accumulators."""
    works = (work for stage in step.stages for work in stage.work)
    one = next(work for work in works if isinstance(work, Pass) and work.kind == kind)
    parts = (head_catalog if kind == HEAD else layer_catalog).parts(step.model, step.options)
    calls = graph_calls(step.ops(one, micro_batch=0 if first else 1))
    return Counter({parts[part].name: count for part, count in calls.items()})


def layer_update_calls(step: Step, *, resident: bool) -> Counter[str]:
    """Calls by graph name in the update of one layer."""
    return graph_calls(step.update_ops(Update(0, resident)))


def updates(step: Step) -> Iterator[Update]:
    """Every update of a step."""
    return (update for stage in step.stages for update in stage.updates)


def update_elements(step: Step, update: Update) -> int:
    """Elements that the update is of; what a resident one still does on the host (vectors) is not counted there."""
    if isinstance(update.of, int):
        shapes = parameter_shapes(step.model).values()
        return sum(math.prod(shape) for shape in shapes if not update.resident or len(shape) > 1)
    return step.model.hidden if update.of == "norm" else step.model.vocab * step.model.hidden


def host_elements(step: Step) -> int:
    """Elements that the host updates in a step."""
    return sum(update_elements(step, update) for update in updates(step) if not update.resident)


def products(step: Step) -> dict[str, float]:
    """Products of a pass of each kind through one layer, or the head, in proportion."""
    layer = sum(math.prod(shape) for shape in parameter_shapes(step.model).values() if len(shape) > 1)
    chunks = Chunks.of(step.model.vocab)
    head = chunks.count * chunks.rows * step.model.hidden
    return {kind: PRODUCTS[kind] * (head if kind == HEAD else layer) for kind in (FORWARD, BACKWARD, HEAD)}
