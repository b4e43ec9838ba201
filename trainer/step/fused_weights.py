"""New parameters of a layer on their way into the device weights that hold several of them.

The optimizer finishes parameters one by one, in any order and on any thread; a device weight is made when the last of
its parameters is there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcache.device.base import Buffer
from trainer.architecture.parameters import Weight
from trainer.host.pages import empty


@dataclass
class Rows:
    """A weight's elements [n], of which those of `missing` parameters are not there yet."""

    elements: Tensor
    missing: int


class Assembly:
    """What is there of each weight of one layer, in the compute dtype."""

    def __init__(self, weights: Iterable[Weight], dtype: torch.dtype) -> None:
        self._of = {name: weight for weight in weights for name, _ in weight.parts}
        self._dtype = dtype
        self._lock = threading.Lock()
        self._rows: dict[str, Rows] = {}
        self._tiles: dict[str, dict[str, Sequence[Buffer]]] = {}

    def place(self, name: str) -> Tensor:
        """Where the elements of a parameter are to be written on the host. Any thread."""
        weight = self._of[name]
        with self._lock:
            if weight.name not in self._rows:
                self._rows[weight.name] = Rows(empty((weight.elements,), self._dtype), len(weight.parts))
            return self._rows[weight.name].elements[weight.slice_of(name)]

    def written(self, name: str) -> tuple[Weight, Tensor] | None:
        """The weight with its elements [n], nobody else's, if this parameter was its last one. Any thread."""
        weight = self._of[name]
        with self._lock:
            rows = self._rows[weight.name]
            rows.missing -= 1
            if rows.missing:
                return None
            del self._rows[weight.name]
        return weight, rows.elements

    def add_tiles(self, name: str, tiles: Sequence[Buffer]) -> tuple[Weight, list[Buffer]] | None:
        """The same for a parameter whose flat tiles are on the device. Main thread."""
        weight = self._of[name]
        waiting = self._tiles.setdefault(weight.name, {})
        waiting[name] = tiles
        if len(waiting) < len(weight.parts):
            return None
        del self._tiles[weight.name]
        return weight, [tile for part, _ in weight.parts for tile in waiting[part]]
