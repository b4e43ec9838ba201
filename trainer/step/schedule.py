"""The step as one description: what is done for a micro-batch, on which device, in which order. No torch.

The run carries it out (`trainer.step.play`), the memory plan adds it up (`trainer.step.memory`), calls.json counts its
graph calls. docs/step.md shows a step of a small model.

A step is a list of stages. A stage belongs to one device, does its work for every micro-batch, in order, and then
starts the updates of those parts of the model whose gradients are final. Stages of different devices run at the same
time; what one waits for is an activation that another sends over the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, TensorSpec
from trainer.architecture.config import ModelConfig
from trainer.catalogs import head as head_catalog
from trainer.catalogs import layer as layer_catalog
from trainer.model.head_ops import NORM as HEAD_NORM
from trainer.model.head_ops import HeadOps, chunk
from trainer.model.layer_ops import LayerOps
from trainer.model.ops import Op, graph_calls
from trainer.model.update_ops import UpdateOps, table_update, vector_update
from trainer.step.placement import Placement

FORWARD, HEAD, BACKWARD = "forward", "head", "backward"
# Of the masks that a device holds: 16 micro-batches of 1024 tokens where 4 query heads share a key's.
MASK_BYTES = 256 << 20


@dataclass(frozen=True)
class Activation:
    """A micro-batch's input of a layer, or its `gradient`: [T, H] of the compute dtype. The head is layer L."""

    layer: int
    gradient: bool = False


@dataclass(frozen=True)
class Arrive:
    """Upload the activation from the host, which `keeps` its copy for a later upload or lets it go.

    It may be begun while the micro-batch before is worked on. Layer 0's input is the embedded tokens.
    """

    what: Activation
    keeps: bool = False


@dataclass(frozen=True)
class Leave:
    """Take the activation to the host, and free the device's."""

    what: Activation


@dataclass(frozen=True)
class Drop:
    """Free the device's copy of the activation."""

    what: Activation


@dataclass(frozen=True)
class Pass:
    """Forward or backward through `layer`, or through the head (`layer` is L): `Step.ops` lists it."""

    kind: str
    layer: int


Work = Arrive | Leave | Drop | Pass


@dataclass(frozen=True)
class Update:
    """Start the update of a part of the model: a layer's number, `norm`, `head` or `embedding`."""

    of: int | str
    resident: bool = False


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one device does in one go: `work` for each micro-batch, in order; then `updates`, in order."""

    kind: str
    device: int
    layers: range
    work: tuple[Work, ...]
    updates: tuple[Update, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step of `micro_batches` on devices; `stages` are in an order in which one thread can do them all.

    activation: [T, H]
    clipped:    updates wait for the norm of all gradients, which wait on the host
    masks:      each micro-batch has a mask of its own on every device, for the documents in it
    """

    model: ModelConfig
    options: CatalogOptions
    placement: Placement
    micro_batches: int
    clipped: bool
    stages: tuple[Stage, ...]
    masks: bool = False

    @property
    def mask(self) -> TensorSpec:
        """[g * S, S] for g query heads in a group of heads and a sequence of S."""
        sequence = self.options.sequence
        return TensorSpec("mask", "float32", (self.model.heads // self.model.kv_heads * sequence, sequence))

    @property
    def held_masks(self) -> int:
        """How many masks a device holds at most: its memory does not grow with the micro-batches."""
        return min(self.micro_batches, max(1, MASK_BYTES // self.mask.size_bytes)) if self.masks else 0

    @property
    def kept_masks(self) -> int:
        """Of how many micro-batches, the first ones, it keeps the mask through a step; others come in one's place."""
        return self.held_masks if self.held_masks == self.micro_batches else self.held_masks - 1

    @property
    def activation(self) -> TensorSpec:
        tokens = self.options.micro_batch * self.options.sequence
        return TensorSpec("activation", self.options.dtype, (tokens, self.model.hidden))

    def ops(self, work: Pass, micro_batch: int) -> tuple[Op, ...]:
        """What a pass does on its device for a micro-batch, which counts from 0."""
        return _pass_ops(self.model, self.options, work.kind, micro_batch == 0)

    def update_ops(self, update: Update) -> tuple[Op, ...]:
        """What an update does on its device; by workers of the host too, later."""
        if isinstance(update.of, int):
            return _layer_update(self.model, self.options, update.resident)
        if update.of == "norm":
            return vector_update(self.norm)
        return table_update(self.chunks) if update.of == "head" else ()

    @property
    def norm(self) -> TensorSpec:
        return TensorSpec(HEAD_NORM, self.options.dtype, (self.model.hidden,))

    @property
    def chunks(self) -> tuple[TensorSpec, ...]:
        """The head's table on its device."""
        chunks = HeadOps(self.model, self.options).chunks
        return tuple(
            TensorSpec(chunk(i), self.options.dtype, (chunks.rows, self.model.hidden)) for i in range(chunks.count)
        )

    def calls(self, device: int) -> dict[str, int]:
        """How often a step calls each graph on a device, by the graph's name."""
        graphs = {
            **{(FORWARD, part): graph for part, graph in layer_catalog.parts(self.model, self.options).items()},
            **{(HEAD, part): graph for part, graph in head_catalog.parts(self.model, self.options).items()},
        }
        found: Counter[str] = Counter()
        for stage in self.stages:
            if stage.device == device:
                found.update(self._stage_calls(stage, graphs))
        return dict(sorted(found.items()))

    def _stage_calls(self, stage: Stage, graphs: Mapping[tuple[str, str], Graph]) -> Counter[str]:
        found: Counter[str] = Counter()
        catalog = HEAD if stage.kind == HEAD else FORWARD
        for work in stage.work:
            if isinstance(work, Pass):
                for micro_batch, times in ((0, 1), (1, self.micro_batches - 1)):
                    for part, count in graph_calls(self.ops(work, micro_batch)).items():
                        found[graphs[catalog, part].name] += times * count
        for update in stage.updates:
            found.update(graph_calls(self.update_ops(update)))
        return +found


@cache
def _pass_ops(model: ModelConfig, options: CatalogOptions, kind: str, first: bool) -> tuple[Op, ...]:
    if kind == FORWARD:
        return LayerOps(model, options).forward()
    if kind == BACKWARD:
        return LayerOps(model, options).backward(first=first)
    head = HeadOps(model, options)
    return head.forward() + head.backward(first=first)


@cache
def _layer_update(model: ModelConfig, options: CatalogOptions, resident: bool) -> tuple[Op, ...]:
    ops = UpdateOps(model, options)
    return ops.resident() if resident else ops.offload()


def describe_step(
    model: ModelConfig,
    options: CatalogOptions,
    placement: Placement,
    *,
    micro_batches: int,
    clipped: bool = False,
    masks: bool = False,
) -> Step:
    """A step of a model whose layers are placed so."""
    stages = tuple(_Stages(model, placement).all())
    return Step(
        model=model,
        options=options,
        placement=placement,
        micro_batches=micro_batches,
        clipped=clipped,
        stages=stages,
        masks=masks,
    )


class _Stages:
    """The stages of a step, in the order of their first work."""

    def __init__(self, model: ModelConfig, placement: Placement) -> None:
        self._tied = model.tied
        self._placement = placement
        self._last = placement.devices - 1
        self._resident = placement.resident_layers()

    def all(self) -> Iterator[Stage]:
        groups, devices = self._placement.groups, self._placement.devices
        # On one device forward needs no groups: a micro-batch goes all the way up, and nothing comes from the host.
        up = groups if devices > 1 else (range(self._placement.layers),)
        targets = [*(k % devices for k in range(1, len(up))), self._last]
        for k, (group, target) in enumerate(zip(up, targets, strict=True)):
            yield self._forward(k % devices, group, target)
        yield self._head()
        for upper, k in pairwise([self._last, *reversed(range(len(groups)))]):
            source = upper % devices
            yield self._backward(k % devices, groups[k], source, (k - 1) % devices if k else None)

    def _waits(self, device: int) -> bool:
        """Whether what a device keeps for later stages waits on the host."""
        return device in self._placement.on_host

    def _forward(self, device: int, group: range, target: int) -> Stage:
        work: list[Work] = [Arrive(Activation(group.start), keeps=self._waits(device))]
        for layer in group:
            work.append(Pass(FORWARD, layer))
            if self._waits(device):
                x = Activation(layer)
                work.append(Drop(x) if layer == group.start else Leave(x))
        if target != device or self._waits(device):
            work.append(Leave(Activation(group.stop)))
        return Stage(kind=FORWARD, device=device, layers=group, work=tuple(work))

    def _head(self) -> Stage:
        device, layers = self._last, self._placement.layers
        x, gradient = Activation(layers), Activation(layers, gradient=True)
        work: tuple[Work, ...] = Pass(HEAD, layers), Drop(x)
        if self._waits(device):
            work = Arrive(x), *work, Leave(gradient)
        updates = (Update("norm"), *(() if self._tied else (Update("head"),)))
        return Stage(kind=HEAD, device=device, layers=range(layers, layers), work=work, updates=updates)

    def _backward(self, device: int, group: range, source: int, target: int | None) -> Stage:
        """source, target: the devices that the gradient comes from and goes to; None: the embedding, on the host."""
        work: list[Work] = []
        if source != device or self._waits(device):
            work.append(Arrive(Activation(group.stop, gradient=True)))
        for layer in reversed(group):
            x = Activation(layer)
            work += [Arrive(x)] if self._waits(device) else []
            work += [Pass(BACKWARD, layer), Drop(x)]
        if target != device or self._waits(device):
            work.append(Leave(Activation(group.start, gradient=True)))
        updates = [Update(layer, layer in self._resident) for layer in reversed(group)]
        if target is None:
            updates.append(Update("head" if self._tied else "embedding"))
        return Stage(kind=BACKWARD, device=device, layers=group, work=tuple(work), updates=tuple(updates))
