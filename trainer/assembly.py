"""New parameters of a layer on their way into the device weights that hold several of them.

The optimizer finishes parameters one by one, in any order and on any thread; a device weight is made when the last of
its parameters has come.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trainer.device.base import Buffer
from trainer.model.parameters import Weight


class Assembly:
    """What has come of each weight of one layer."""

    def __init__(self, weights: Iterable[Weight]) -> None:
        self._of = {name: weight for weight in weights for name, _ in weight.parts}
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Tensor]] = {}
        self._tiles: dict[str, dict[str, Sequence[Buffer]]] = {}

    def add(self, name: str, parameter: Tensor) -> tuple[Weight, Tensor] | None:
        """A parameter, flat, on the host, any thread: the weight with its elements [n] if this was its last one.

        What has to wait is copied, so the caller may use `parameter` again.
        """
        weight = self._of[name]
        if len(weight.parts) == 1:
            return weight, parameter
        with self._lock:
            waiting = self._rows.setdefault(weight.name, {})
            waiting[name] = parameter.clone()
            if len(waiting) < len(weight.parts):
                return None
            del self._rows[weight.name]
        return weight, torch.cat([waiting[part].view(-1) for part, _ in weight.parts])

    def add_tiles(self, name: str, tiles: Sequence[Buffer]) -> tuple[Weight, list[Buffer]] | None:
        """The same for a parameter whose flat tiles are on the device. Main thread."""
        weight = self._of[name]
        waiting = self._tiles.setdefault(weight.name, {})
        waiting[name] = tiles
        if len(waiting) < len(weight.parts):
            return None
        del self._tiles[weight.name]
        return weight, [tile for part, _ in weight.parts for tile in waiting[part]]
