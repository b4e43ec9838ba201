"""What a run keeps on each device and on the host, in bytes, known before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphcache.graph import ITEM_BYTES
from trainer.catalogs.head import Chunks
from trainer.config import RunConfig
from trainer.model.config import ModelConfig
from trainer.model.parameters import device_weights, parameter_shapes
from trainer.model.row_gradients import largest_rows
from trainer.step.placement import Placement

FLOAT_BYTES = ITEM_BYTES["float32"]
# AdamW's master weight and two moments.
STATE_BYTES = 3 * FLOAT_BYTES


@dataclass(frozen=True)
class DevicePlan:
    """Bytes on one device at the step's fullest moment.

    weights:   of its layers, and of the head on the last device
    tables:    rotary tables, the causal mask, the zeros that accumulators start from
    inputs:    each layer's input, kept from forward to backward
    gradients: accumulators that are alive together: of all its layers with several micro-batches, else of one
    state:     master weights and moments of resident layers
    working:   what a layer's or the head's graph calls hold at their fullest, beside what is listed above
    programs:  of the loaded graphs
    """

    device: int
    weights: int
    tables: int
    inputs: int
    gradients: int
    state: int
    working: int
    programs: int

    @property
    def total_bytes(self) -> int:
        return sum(size for name, size in vars(self).items() if name != "device")

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "total_bytes": self.total_bytes}


@dataclass(frozen=True)
class MemoryPlan:
    """`host_bytes`: the optimizer's state of everything that is not resident, the tables of tokens, and gradients of
    their rows."""

    devices: tuple[DevicePlan, ...]
    host_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {"devices": [d.as_json() for d in self.devices], "host_bytes": self.host_bytes}


def plan_memory(
    model: ModelConfig, config: RunConfig, placements: Sequence[Placement], program_bytes: int = 0
) -> MemoryPlan:
    """The plan of a run whose layers are placed so, and whose graphs take `program_bytes` on each device."""
    devices = tuple(
        _device_plan(model, config, placement, placement is placements[-1], program_bytes) for placement in placements
    )
    layer = _elements(parameter_shapes(model).values())
    resident = sum(len(placement.resident) for placement in placements)
    table = model.vocab * model.hidden
    tables = table if model.tied else 2 * table
    offloaded = layer * (model.layers - resident) + model.hidden + tables
    on_host = offloaded * STATE_BYTES + tables * ITEM_BYTES[config.dtype] + _row_gradients(model, config)
    return MemoryPlan(devices, on_host)


def _row_gradients(model: ModelConfig, config: RunConfig) -> int:
    """Rows that tokens add to the tables' gradients in a step: each as an input and as a target."""
    tokens = config.micro_batch * config.seq
    added = tokens * config.accum
    # A tied table gets both.
    rows = largest_rows(2 * added, tokens, model.vocab) if model.tied else 2 * largest_rows(added, tokens, model.vocab)
    return rows * model.hidden * FLOAT_BYTES


def _device_plan(
    model: ModelConfig, config: RunConfig, placement: Placement, has_head: bool, program_bytes: int
) -> DevicePlan:
    item, layers = ITEM_BYTES[config.dtype], len(placement.layers)
    shapes = parameter_shapes(model)
    layer = _elements(shapes.values())
    tokens = config.micro_batch * config.seq
    head = model.hidden * (_rows(model) + 1) if has_head else 0
    zeros = _elements({weight.shape for weight in device_weights(shapes) if len(weight.shape) == 1})
    rotary = 3 * tokens * (model.q_width + 2 * model.kv_width)
    mask = model.heads // model.kv_heads * config.seq**2
    gradients, working = max(_moments(model, config, layers, head), key=sum)
    return DevicePlan(
        device=placement.device,
        weights=(layer * layers + head) * item,
        tables=(zeros + rotary + mask) * FLOAT_BYTES,
        inputs=layers * tokens * model.hidden * item,
        gradients=gradients,
        state=layer * len(placement.resident) * STATE_BYTES,
        working=working,
        programs=program_bytes,
    )


def _moments(model: ModelConfig, config: RunConfig, layers: int, head: int) -> Iterator[tuple[int, int]]:
    """Accumulators and working set, in bytes, at the moments that may be the fullest: in a layer, in the head."""
    several = config.accum > 1
    layer = _elements(parameter_shapes(model).values())
    below = layer * layers if several else 0  # of earlier micro-batches
    yield ((below or layer) + (head if several or model.tied else 0)) * FLOAT_BYTES, _layer_working(model, config)
    if head:
        yield (below + head) * FLOAT_BYTES, _head_working(model, config)


def _layer_working(model: ModelConfig, config: RunConfig) -> int:
    """Backward of a layer: recomputed activations (attention has three of the size of its probabilities at once), a
    weight's gradient and its new accumulator.

    Or its resident update, which holds the gradients in both dtypes and a tile's new state.
    """
    tokens, item = config.micro_batch * config.seq, ITEM_BYTES[config.dtype]
    shapes = parameter_shapes(model)
    largest = max(weight.elements for weight in device_weights(shapes))
    probabilities = config.micro_batch * model.heads * config.seq**2
    attention = tokens * (5 * model.hidden + 4 * model.q_width + 4 * model.kv_width) + 3 * probabilities
    mlp = attention + tokens * (3 * model.hidden + 6 * model.intermediate)
    tile = min(config.catalog_options.tile_elements, max(math.prod(shape) for shape in shapes.values()))
    update = _elements(shapes.values()) * 2 * item + tile * (STATE_BYTES + item) if config.resident_layers else 0
    # A first micro-batch's gradient is its accumulator.
    adding = 2 * largest * FLOAT_BYTES if config.accum > 1 else 0
    return max(mlp * item + adding, update)


def _head_working(model: ModelConfig, config: RunConfig) -> int:
    """All logits, a chunk's gradient of them, the hidden state and its gradients, a chunk's gradient."""
    tokens, item = config.micro_batch * config.seq, ITEM_BYTES[config.dtype]
    hidden = tokens * model.hidden * (3 * item + 2 * FLOAT_BYTES)
    logits = tokens * (_rows(model) + Chunks.of(model.vocab).rows) * item
    return logits + hidden + 2 * _chunk(model) * FLOAT_BYTES + tokens * 4 * FLOAT_BYTES


def _rows(model: ModelConfig) -> int:
    """Rows of the head's chunks, padding included."""
    return model.vocab + Chunks.of(model.vocab).padding


def _chunk(model: ModelConfig) -> int:
    """Elements of the head's table in one chunk."""
    return Chunks.of(model.vocab).rows * model.hidden


def _elements(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
