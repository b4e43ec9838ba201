"""What a run keeps on each device and on the host, in bytes, known before anything is loaded. No torch.

It adds up the step's own description (`trainer.step.schedule`), buffer by buffer, so a change of the step changes it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from graphcache.graph import ITEM_BYTES
from trainer.architecture.parameters import device_weights, parameter_shapes
from trainer.catalogs.head import Chunks
from trainer.model.head_ops import BIAS, LAST_BIAS
from trainer.model.row_bounds import largest_rows
from trainer.model.update_ops import STATE
from trainer.step.ledger import INPUTS, KINDS, PROGRAMS, STATE_, TABLES, WEIGHTS, DeviceLedger, Ledger
from trainer.step.schedule import Activation, Arrive, Leave, Step

FLOAT_BYTES = ITEM_BYTES["float32"]
# AdamW's master weight and two moments.
STATE_BYTES = len(STATE) * FLOAT_BYTES


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """Bytes on one device at the step's fullest moment.

    weights:   of its layers, and of the head on the last device
    tables:    rotary tables, the causal mask and each micro-batch's own, the zeros that accumulators start from, the
               head's biases
    inputs:    each layer's input, kept from forward to backward, and gradients on their way down
    gradients: accumulators that are alive together: of one group of layers, or of the head
    state:     master weights and moments of resident layers
    working:   what a pass or an update holds beside what is listed above
    programs:  of the loaded graphs
    inputs_on_host: whether layers' inputs wait on the host, for want of room
    """

    device: int
    weights: int
    tables: int
    inputs: int
    gradients: int
    state: int
    working: int
    programs: int
    inputs_on_host: bool

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "total_bytes": self.total_bytes}


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """Bytes on the host, devices that are the host itself not counted.

    state:     masters and moments of everything that is not resident
    tables:    of tokens: embedding and head
    rows:      gradients of single rows of these
    inputs:    activations that wait for a device
    gradients: all of them in the compute dtype, under `--clip-norm`
    updates:   new weights that are written, and gradients that wait to be
    """

    state: int
    tables: int
    rows: int
    inputs: int
    gradients: int
    updates: int

    @property
    def total_bytes(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class MemoryPlan:
    devices: tuple[DevicePlan, ...]
    host: HostPlan
    group_layers: int

    @property
    def host_bytes(self) -> int:
        return self.host.total_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "devices": [d.as_json() for d in self.devices],
            "host": vars(self.host),
            "host_bytes": self.host_bytes,
            "group_layers": self.group_layers,
        }


def add_up(step: Step, *, program_bytes: int = 0, workers: int = 1) -> MemoryPlan:
    """The plan of a step whose graphs take `program_bytes` on each device, and whose updates have so many workers."""
    devices = tuple(_device_plan(step, device, program_bytes) for device in range(step.placement.devices))
    return MemoryPlan(devices, _host_plan(step, workers), max(map(len, step.placement.groups)))


def _device_plan(step: Step, device: int, program_bytes: int) -> DevicePlan:
    ledger = Ledger({**_kept(step, device), PROGRAMS: program_bytes})
    play = DeviceLedger(step, ledger)
    for stage in step.stages:
        if stage.device == device:
            play.do(stage)
    parts = {kind: ledger.fullest[kind] for kind in KINDS}
    return DevicePlan(device=device, **parts, inputs_on_host=device in step.placement.on_host)


def _kept(step: Step, device: int) -> dict[str, int]:
    """What is on a device from the first step to the last, by kind."""
    item = ITEM_BYTES[step.options.dtype]
    placement, shapes = step.placement, parameter_shapes(step.model)
    layers, has_head = placement.layers_of(device), device == placement.devices - 1
    layer = sum(map(math.prod, shapes.values()))
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    resident = len(placement.resident_layers() & set(layers))
    head = sum(chunk.size_bytes for chunk in step.chunks) + step.norm.size_bytes if has_head else 0
    return {
        WEIGHTS: layer * item * len(layers) + head,
        TABLES: _tables(step, has_head),
        STATE_: matrices * STATE_BYTES * resident,
    }


def _tables(step: Step, has_head: bool) -> int:
    model = step.model
    tokens = step.options.micro_batch * step.options.sequence
    vectors = {weight.shape for weight in device_weights(parameter_shapes(model)) if len(weight.shape) == 1}
    zeros = sum(map(math.prod, vectors)) + (model.hidden if has_head else 0)
    rotary = 3 * tokens * (model.q_width + 2 * model.kv_width)
    mask = (1 + step.held_masks) * step.mask.elements
    chunks = Chunks.of(model.vocab)
    biases = len((BIAS, LAST_BIAS)) * chunks.rows if has_head and chunks.padding else 0
    return (zeros + rotary + mask) * FLOAT_BYTES + biases * ITEM_BYTES[step.options.dtype]


def _host_plan(step: Step, workers: int) -> HostPlan:
    model, item = step.model, ITEM_BYTES[step.options.dtype]
    shapes = parameter_shapes(model)
    layer = sum(map(math.prod, shapes.values()))
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    table = model.vocab * model.hidden
    tables = table if model.tied else 2 * table
    parameters = layer * model.layers + model.hidden + tables
    resident = matrices * len(step.placement.resident_layers())
    largest = max(weight.elements for weight in device_weights(shapes))
    # The table's gradient waits in pieces; one chunk of it is there in both dtypes.
    table_update = table * item + Chunks.of(model.vocab).rows * model.hidden * FLOAT_BYTES
    return HostPlan(
        state=(parameters - resident) * STATE_BYTES,
        tables=tables * item,
        rows=_row_gradients(step),
        inputs=_waiting_inputs(step),
        gradients=parameters * item if step.clipped else 0,
        updates=max(table_update, 2 * workers * largest * item),
    )


def _row_gradients(step: Step) -> int:
    """Rows that tokens add to the tables' gradients in a step: each as an input and as a target."""
    model, tokens = step.model, step.options.micro_batch * step.options.sequence
    added = tokens * step.micro_batches
    if model.tied:
        # A table gets both, the targets' part of a micro-batch before the inputs' part, which comes much later.
        rows = added + largest_rows(2 * added, tokens, model.vocab)
    else:
        rows = 2 * largest_rows(added, tokens, model.vocab)
    return rows * model.hidden * FLOAT_BYTES


def _waiting_inputs(step: Step) -> int:
    """Activations on the host at most, if each stage is done before the next begins: in turns there are no fewer."""
    ledger, size = Ledger({}), step.activation.size_bytes
    on_host: Counter[Activation] = Counter()
    for stage in step.stages:
        for work in stage.work:
            # Embedded tokens are looked up again, and their gradients added up.
            if not isinstance(work, Arrive | Leave) or work.what in (Activation(0), Activation(0, gradient=True)):
                continue
            if isinstance(work, Leave) or work.keeps:
                on_host[work.what] = step.micro_batches
            else:
                on_host.pop(work.what, None)
            ledger.add(INPUTS, on_host.total() * size - ledger.held[INPUTS])
    return ledger.fullest[INPUTS]
