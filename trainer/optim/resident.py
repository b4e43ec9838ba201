"""State on the device: a parameter's master and moments as flat tiles there, updated by the cached AdamW graph.

Everything here calls graphs, so it runs on the main thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from graphcache.device.base import Buffer, DeviceBackend, LoadedGraph
from trainer.catalogs.adamw import SCALARS, graph, tiles
from trainer.optim.base import AdamState, Parameter, Piece, ResidentUnit
from trainer.optim.host import square_sum
from trainer.optim.scalars import StepScalars


class ResidentDevice:
    """What all resident parameters of one device share: its AdamW graphs, and the scalars of the step."""

    def __init__(self, backend: DeviceBackend, *, tile_elements: int, dtype: str) -> None:
        self.backend = backend
        self.tile_elements = tile_elements
        self._dtype = dtype
        self._graphs: dict[int, LoadedGraph] = {}
        self._scalars: tuple[StepScalars, tuple[Buffer, ...]] | None = None

    def update(self, tile: Sequence[Buffer], scalars: StepScalars) -> tuple[Buffer, Buffer, Buffer, Buffer]:
        """New master, exp_avg, exp_avg_sq and weight from (master, exp_avg, exp_avg_sq, gradient). Frees the old."""
        elements = tile[0].spec.elements
        if elements not in self._graphs:
            self._graphs[elements] = self.backend.load(graph(elements, self._dtype))
        master, exp_avg, exp_avg_sq, weight = self.backend.call(
            self._graphs[elements], (*tile, *self._uploaded(scalars))
        )
        self.backend.free(*tile)
        return master, exp_avg, exp_avg_sq, weight

    def _uploaded(self, scalars: StepScalars) -> tuple[Buffer, ...]:
        """[1] float32 each, uploaded once a step."""
        if self._scalars is None or self._scalars[0] != scalars:
            self.end_step()
            parts = zip(SCALARS, torch.split(scalars.tensor(), 1), strict=True)
            self._scalars = scalars, tuple(self.backend.upload(value, name) for name, value in parts)
        return self._scalars[1]

    def end_step(self) -> None:
        if self._scalars is not None:
            self.backend.free(*self._scalars[1])
            self._scalars = None


class ResidentParameter:
    """One matrix of a resident unit. Its tiles are those that `trainer.catalogs.adamw` lists graphs for."""

    def __init__(self, unit: ResidentUnit, parameter: Parameter, state: AdamState, device: ResidentDevice) -> None:
        self.unit = unit
        self.parameter = parameter
        self._device = device
        sizes = tiles(math.prod(parameter.shape), device.tile_elements)
        parts = zip(
            *(torch.split(t, list(sizes)) for t in (state.master, state.exp_avg, state.exp_avg_sq)), strict=True
        )
        names = [f"{unit.name}.{parameter.name} {part}" for part in ("master", "exp_avg", "exp_avg_sq")]
        upload = device.backend.upload
        self._tiles = [tuple(upload(t, name) for t, name in zip(part, names, strict=True)) for part in parts]
        # Of this step: how many tiles have come, and the new weight's.
        self._begun = 0
        self._weight: list[Buffer] = []

    def updates(self, piece: Piece) -> Iterator[ResidentUpdate]:
        """The update of the next tile. `piece` is its gradient, on the device."""
        assert isinstance(piece, Buffer)
        self._begun += 1
        yield ResidentUpdate(self, self._begun - 1, piece)

    def apply(self, index: int, gradient: Buffer, scalars: StepScalars) -> None:
        """Update a tile; the last one of a parameter installs its weight. In the order of the tiles."""
        *state, weight = self._device.update((*self._tiles[index], gradient), scalars)
        self._tiles[index] = tuple(state)
        self._weight.append(weight)
        if len(self._weight) == len(self._tiles):
            tiles_, self._begun, self._weight = self._weight, 0, []
            self.unit.install_tiles(self.parameter.name, tiles_)

    def to_host(self) -> AdamState:
        download = self._device.backend.download
        return AdamState(*(torch.cat([download(part) for part in parts]) for parts in zip(*self._tiles, strict=True)))

    def free(self) -> None:
        for tile in self._tiles:
            self._device.backend.free(*tile)
        self._tiles = []


@dataclass
class ResidentUpdate:
    """The gradient of one tile, [n] of the compute dtype, and the update that it is for."""

    of: ResidentParameter
    index: int
    gradient: Piece

    @property
    def decays(self) -> bool:
        return self.of.parameter.decays

    def square_sum(self) -> float:
        """The gradient's sum of squares. The gradient moves to the host: all layers' have no room on the device."""
        assert isinstance(self.gradient, Buffer)
        self.gradient = self.of.unit.backend.take(self.gradient)
        return square_sum(self.gradient)

    def apply(self, scalars: StepScalars) -> None:
        gradient = self.gradient
        if not isinstance(gradient, Buffer):
            gradient = self.of.unit.backend.upload(gradient, "gradient")
        self.of.apply(self.index, gradient, scalars)
