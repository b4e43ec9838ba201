"""A device's memory through a step: its description, played on a ledger of bytes by kind. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from graphcache.graph import ITEM_BYTES, TensorSpec
from trainer.architecture.parameters import device_weights, parameter_shapes
from trainer.model.layer_ops import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD
from trainer.model.ops import Call, Download, Free, Op, Upload, View
from trainer.model.update_ops import STATE
from trainer.step.schedule import HEAD, Arrive, Drop, Leave, Pass, Stage, Step, Update, Work

WEIGHTS, TABLES, INPUTS, GRADIENTS, STATE_, WORKING, PROGRAMS = KINDS = (
    "weights", "tables", "inputs", "gradients", "state", "working", "programs",
)  # fmt: skip


class Ledger:
    """Bytes by kind as operations make and free buffers, and what they were when most was held in all."""

    def __init__(self, held: Mapping[str, int]) -> None:
        self.held = Counter(held)
        self.fullest: Counter[str] = Counter(held)

    def add(self, kind: str, size_bytes: int) -> None:
        self.held[kind] += size_bytes
        if self.held.total() > self.fullest.total():
            self.fullest = self.held.copy()

    def repeat(self, before: Mapping[str, int], times: int) -> None:
        """What has happened since it held `before` happens `times` more."""
        growth = {kind: times * (size - before[kind]) for kind, size in self.held.items()}
        most = Counter({kind: self.fullest[kind] + growth[kind] for kind in self.held})
        self.held = Counter({kind: size + growth[kind] for kind, size in self.held.items()})
        if most.total() > self.fullest.total():
            self.fullest = most


class DeviceLedger:
    """The stages of one device on a ledger."""

    def __init__(self, step: Step, ledger: Ledger) -> None:
        self._step = step
        self._ledger = ledger
        self._size = step.activation.size_bytes
        item = ITEM_BYTES[step.options.dtype]
        layer = {weight.name: weight.elements * item for weight in device_weights(parameter_shapes(step.model))}
        self._weights = layer | {spec.name: spec.size_bytes for spec in (*step.chunks, step.norm)}
        # The accumulators of each layer and of the head: sizes by name.
        self._gradients: dict[int, dict[str, int]] = defaultdict(dict)

    def do(self, stage: Stage) -> None:
        """Uploads of a micro-batch are begun beside the work on the one before, and there when its own begins."""
        micro_batches = self._step.micro_batches
        arriving = self._size * sum(isinstance(work, Arrive) for work in stage.work)
        ahead = arriving if micro_batches > 1 else 0
        self._ledger.add(INPUTS, ahead)
        for micro_batch in range(min(2, micro_batches)):
            before = self._ledger.held.copy()
            self._ledger.add(INPUTS, arriving)
            for work in stage.work:
                self._do(work, micro_batch)
        if micro_batches > 2:
            self._ledger.repeat(before, micro_batches - 2)
        self._ledger.add(INPUTS, -ahead)
        for update in stage.updates:
            self._update(stage, update)

    def _do(self, work: Work, micro_batch: int) -> None:
        match work:
            case Leave() | Drop():
                self._ledger.add(INPUTS, -self._size)
            case Pass():
                mine = self._gradients[work.layer]
                known = mine | {OUTPUT_GRAD: self._size}
                left = self._carry_out(self._step.ops(work, micro_batch), known)
                mine |= {name: size for name, size in left.items() if name.startswith("grad ")}

    def _update(self, stage: Stage, update: Update) -> None:
        if isinstance(update.of, str) and stage.kind != HEAD:
            return  # of a table, when nothing else follows
        layer = update.of if isinstance(update.of, int) else stage.layers.start
        self._carry_out(self._step.update_ops(update), self._gradients[layer] | self._weights)

    def _carry_out(self, ops: Iterable[Op], known: Mapping[str, int]) -> dict[str, int]:
        """Play operations; `known` are the sizes of buffers that they may free. Returns what is there afterwards."""
        sizes = dict(known)

        def free(names: Iterable[str]) -> None:
            for name in names:
                self._ledger.add(self._kind(name), -sizes.pop(name))

        def make(specs: Iterable[TensorSpec]) -> None:
            for spec in specs:
                sizes[spec.name] = spec.size_bytes
                self._ledger.add(self._kind(spec.name), spec.size_bytes)

        for op in ops:
            match op:
                case Call():
                    self._call(op, sizes)
                case View():
                    free([op.of])
                    make(op.results)
                case Upload():
                    make([op.result])
                case Download():
                    free([] if op.keeps else [op.of])
                case Free():
                    free(op.names)
        return sizes

    def _call(self, op: Call, sizes: dict[str, int]) -> None:
        """The results are made before the arguments are freed."""
        made = {spec.name: spec.size_bytes for spec in op.results}
        for name, size in made.items():
            self._ledger.add(self._kind(name), size)
        for name in op.frees:
            # What is not known is a tile's state, in whose place new state of its name and size comes.
            self._ledger.add(self._kind(name), -(sizes.pop(name) if name in sizes else made[name]))
        sizes |= made

    def _kind(self, name: str) -> str:
        if name.startswith("grad "):
            return GRADIENTS
        if name in (INPUT, OUTPUT, OUTPUT_GRAD, INPUT_GRAD):
            return INPUTS
        if name in self._weights:
            return WEIGHTS
        return STATE_ if name.startswith(STATE) else WORKING
