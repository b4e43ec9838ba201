"""Units of a few small parameters on the cpu backend, and the optimizers over them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer
from trainer.architecture.parameters import device_weights
from trainer.device.cpu import CpuBackend
from trainer.model.tiles import TileRunner
from trainer.optim.adamw import AdamW
from trainer.optim.base import AdamState, Parameter, Piece
from trainer.optim.scalars import AdamSettings

SETTINGS = AdamSettings(beta1=0.9, beta2=0.98, eps=1e-8, weight_decay=0.1)
# Small enough that the matrices here take one, two and three tiles.
TILE_ELEMENTS = 40
SHAPES = {"wide.weight": (6, 20), "norm.weight": (7,), "small.weight": (5, 8), "bias": (3,), "odd.weight": (7, 11)}


class FakeUnit:
    """A unit as the optimizers see one. `log` lists what was called; weights are flat, by name, on the host."""

    prefix = ""

    def __init__(self, name: str, backend: CpuBackend, dtype: str = "bfloat16", *, resident: bool = False) -> None:
        self.name = name
        self.backend = backend
        self.resident = resident
        self.keeps_weights = False
        self.parameters = tuple(Parameter(n, s) for n, s in SHAPES.items())
        self.weights: dict[str, Tensor] = {}
        self.placed: dict[str, Tensor] = {}
        self.log: list[str] = []
        self.gradients: Mapping[str, Tensor] = {}
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device_weights = {weight.name: weight for weight in device_weights(SHAPES)}
        options = CatalogOptions(tile_elements=TILE_ELEMENTS, dtype=dtype)
        self._tiles = TileRunner(backend, self._device_weights.values(), options)
        self._tiles.load()

    def drop_weights(self) -> None:
        self.log.append("drop")

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        for parameter in self.parameters:
            self.log.append(f"pieces of {parameter.name}")
            total = self.gradients[parameter.name]
            if parameter.decays:
                weight = self._device_weights[parameter.name]
                yield from self._tiles.cut(weight, self.backend.upload(total, parameter.name))
            else:
                yield parameter.name, total.to(self._dtype).flatten()

    def place(self, name: str) -> Tensor:
        new = self.weights[name] if self.keeps_weights else torch.empty(math.prod(SHAPES[name]), dtype=self._dtype)
        self.placed[name] = new
        return new

    def install(self, name: str) -> None:
        self.log.append(f"install {name}")
        self.weights[name] = self.placed.pop(name)

    def install_tiles(self, name: str, tiles: Sequence[Buffer]) -> None:
        self.log.append(f"install {name}")
        joined = self._tiles.join(self._device_weights[name], tiles)
        self.weights[name] = self.backend.download(joined).flatten()
        self.backend.free(joined)


def random_tensors(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """A float32 tensor for each parameter."""
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) * scale for name, shape in SHAPES.items()}


def fresh_states(seed: int) -> dict[str, AdamState]:
    """Random masters, moments of zero."""
    masters = {name: tensor.flatten() for name, tensor in random_tensors(seed, 0.1).items()}
    return {name: AdamState(m, torch.zeros_like(m), torch.zeros_like(m)) for name, m in masters.items()}


def open_adamw(
    units: Sequence[FakeUnit], *, dtype: str = "bfloat16", workers: int = 2, clip_norm: float | None = None
) -> AdamW:
    """An optimizer that has adopted the units, each with states of its own."""
    optimizer = AdamW(SETTINGS, workers=workers, dtype=dtype, tile_elements=TILE_ELEMENTS, clip_norm=clip_norm)
    for number, unit in enumerate(units):
        optimizer.adopt(unit, fresh_states(number))
    return optimizer


def gradients_of(step: int, number: int) -> dict[str, Tensor]:
    """The gradients of unit `number` in a step."""
    return random_tensors(1000 * step + number, 0.01)


def submit(optimizer: AdamW, unit: FakeUnit, gradients: Mapping[str, Tensor]) -> None:
    """The update of a unit whose gradients are these."""
    unit.gradients = gradients
    optimizer.submit(unit)


def run_steps(optimizer: AdamW, units: Sequence[FakeUnit], steps: int, lr: float = 1e-2) -> None:
    for step in range(1, steps + 1):
        optimizer.begin_step(step, lr)
        for number, unit in enumerate(units):
            submit(optimizer, unit, gradients_of(step, number))
        optimizer.finish_step()


def values(optimizer: AdamW, units: Sequence[FakeUnit]) -> list[Tensor]:
    """Copies of every state and weight, in a fixed order."""
    found = []
    for unit in units:
        for name, state in optimizer.state(unit).items():
            found += [state.master, state.exp_avg, state.exp_avg_sq]
            found += [unit.weights[name]] if name in unit.weights else []
    return [tensor.clone() for tensor in found]
