"""How a step is dealt to its devices: the groups' size, and where layers' inputs wait. No torch.

Small groups let devices begin sooner and hold fewer accumulators; large ones send fewer activations over the host. Of
the ways that fit, the quickest by `_Cost` is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from graphcache.graph import ITEM_BYTES
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import parameter_shapes
from trainer.config import RunConfig
from trainer.step.memory import MemoryPlan, add_up
from trainer.step.placement import Placement, placements
from trainer.step.schedule import Step, describe_step

# What a card does and what a link to it carries, for weighing one against the other: a third of RNGD's 512 TFLOPS of
# 8-bit products, halved for bfloat16, and a third of PCIe 5.0 x16 (FuriosaAI, RNGD's data sheet).
PRODUCTS_PER_SEC = 85e12
LINK_BYTES_PER_SEC = 20e9
# Products for each element of a weight and token: two in forward, in recomputing it, in each of backward's two.
PRODUCTS = 8


def choose_step(
    model: ModelConfig,
    config: RunConfig,
    devices: int,
    *,
    micro_batches: int,
    pool_bytes: int | None,
    program_bytes: int = 0,
    workers: int = 1,
) -> tuple[Step, MemoryPlan]:
    """The quickest step that fits into `pool_bytes` on each device (None: no bound), with its plan.

    When nothing fits, what takes least. Raises ConfigError for more devices than layers, and for more resident layers
    than a device has.
    """
    found = []
    options, clipped = config.catalog_options, config.clip_norm is not None
    for placement in sorted(
        placements(model.layers, devices, config.resident_layers), key=_Cost(model, config, micro_batches)
    ):
        for tried in _with_inputs_on_host(placement):
            step = describe_step(
                model, options, tried, micro_batches=micro_batches, clipped=clipped, masks=config.masks_documents
            )
            plan = add_up(step, program_bytes=program_bytes, workers=workers)
            if pool_bytes is None or all(device.total_bytes <= pool_bytes for device in plan.devices):
                return step, plan
            found.append((step, plan))
    return min(found, key=lambda pair: max(device.total_bytes for device in pair[1].devices))


def _with_inputs_on_host(placement: Placement) -> Iterator[Placement]:
    """As it is; with the last device's inputs on the host, which has the head; with all devices'."""
    yield placement
    yield replace(placement, on_host=frozenset({placement.devices - 1}))
    if placement.devices > 1:
        yield replace(placement, on_host=frozenset(range(placement.devices)))


class _Cost:
    """Seconds of a step in forward and backward, by placement; what all placements cost alike is left out."""

    def __init__(self, model: ModelConfig, config: RunConfig, micro_batches: int) -> None:
        tokens = config.micro_batch * config.seq
        weights = sum(map(math.prod, parameter_shapes(model).values()))
        self._layer_secs = PRODUCTS * weights * tokens / PRODUCTS_PER_SEC
        self._crossing_secs = tokens * model.hidden * ITEM_BYTES[config.dtype] / LINK_BYTES_PER_SEC
        self._micro_batches = micro_batches

    def __call__(self, placement: Placement) -> float:
        """A device does its groups one after the other, and waits for the ones below it at the beginning only: if there
        are as many micro-batches as devices."""
        devices, count = placement.devices, len(placement.groups)
        rounds, layers = count / devices, placement.layers / count
        work = rounds * max(self._micro_batches, devices) + devices - 1
        return work * layers * self._layer_secs + rounds * self._micro_batches * 2 * self._crossing_secs
