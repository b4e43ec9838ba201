"""The units of a model on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphcache.device.base import DeviceBackend
from trainer.step.schedule import Step, Update
from trainer.step.units import EmbeddingUnit, HeadPlace, HeadUnit, LayerUnit, NormUnit

ModelUnit = LayerUnit | NormUnit | HeadUnit | EmbeddingUnit


@dataclass(frozen=True, kw_only=True)
class Network:
    """`step` describes a step of them. `embedding` is the head's own unit when the two are tied."""

    step: Step
    devices: Sequence[DeviceBackend]
    embedding: EmbeddingUnit | HeadUnit
    layers: tuple[LayerUnit, ...]
    norm: NormUnit
    head: HeadUnit
    place: HeadPlace

    @property
    def tied(self) -> bool:
        return self.embedding is self.head

    @property
    def in_turns(self) -> bool:
        """Whether one thread serves all devices: there is one device, or their calls may not run at the same time."""
        return len(self.devices) < 2 or not all(device.runs_beside_others for device in self.devices)

    @property
    def units(self) -> tuple[ModelUnit, ...]:
        """Every unit once, in the order of a checkpoint."""
        return (self.embedding, *self.layers, self.norm, *(() if self.tied else (self.head,)))

    def unit_of(self, update: Update) -> ModelUnit:
        if isinstance(update.of, int):
            return self.layers[update.of]
        units: dict[str, ModelUnit] = {"norm": self.norm, "head": self.head, "embedding": self.embedding}
        return units[update.of]
