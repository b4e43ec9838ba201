"""State on the host: what a worker thread does with one piece of a parameter's gradient.

A parameter is updated piece by piece, each by whichever worker is free. The last one to finish installs the new weight,
so no weight leaves the host before all of it is written. Elements are independent of each other, so neither the number
of workers nor their order changes a bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcache.device.base import Buffer
from trainer.optim.base import AdamState, Parameter, Piece, Unit
from trainer.optim.host import adamw_, square_sum
from trainer.optim.scalars import StepScalars

# A tensor on the host is cut into jobs of this many elements, so that the last ones of a step end together.
JOB_ELEMENTS = 2 << 20


class HostParameter:
    """One parameter of a unit, whose state is on the host, and its update in this step."""

    def __init__(self, unit: Unit, parameter: Parameter, state: AdamState) -> None:
        self.unit = unit
        self.parameter = parameter
        self.state = state
        self._elements = math.prod(parameter.shape)
        self._lock = threading.Lock()
        # Of this step: the weight being written, where the next piece begins, elements not yet updated.
        self._weight: Tensor | None = None
        self._begin = 0
        self._left = self._elements
        assert all(t.shape == (self._elements,) and t.dtype == torch.float32 for t in vars(state).values())

    def updates(self, piece: Piece) -> Iterator[HostUpdate]:
        """The jobs of the next piece of this parameter's gradient. Main thread."""
        for part in (piece,) if isinstance(piece, Buffer) else torch.split(piece, JOB_ELEMENTS):
            begin = self._begin
            self._begin += part.spec.elements if isinstance(part, Buffer) else part.numel()
            assert self._begin <= self._elements
            yield HostUpdate(self, begin, self._begin, part)

    def apply(self, begin: int, end: int, gradient: Tensor, scalars: StepScalars) -> None:
        """Update the elements from `begin` to `end`; the last ones of a parameter install its weight. Any thread."""
        weight, part = self._new_weight(), slice(begin, end)
        state = AdamState(self.state.master[part], self.state.exp_avg[part], self.state.exp_avg_sq[part])
        adamw_(state, gradient, weight[part], scalars.tensor())
        with self._lock:
            self._left -= end - begin
            if self._left:
                return
            self._weight, self._begin, self._left = None, 0, self._elements
        self.unit.install(self.parameter.name)

    def _new_weight(self) -> Tensor:
        """Where this step's weight is written: taken when the first of its jobs begins, not for all units at once."""
        with self._lock:
            if self._weight is None:
                self._weight = self.unit.place(self.parameter.name)
            return self._weight

    def to_host(self) -> AdamState:
        return self.state

    def free(self) -> None:
        """Nothing: the host's memory follows the state."""


@dataclass
class HostUpdate:
    """A piece of a parameter's gradient, and the update that it is for. Each method once, on any thread."""

    of: HostParameter
    begin: int
    end: int
    piece: Piece

    @property
    def decays(self) -> bool:
        return self.of.parameter.decays

    def square_sum(self) -> float:
        """The sum of squares of this piece, which is on the host from then on."""
        self.piece = self._gradient()
        return square_sum(self.piece)

    def apply(self, scalars: StepScalars) -> None:
        self.of.apply(self.begin, self.end, self._gradient(), scalars)

    def _gradient(self) -> Tensor:
        """[end - begin] in the compute dtype, on the host; the device's copy is freed."""
        if isinstance(self.piece, Tensor):
            return self.piece
        backend = self.of.unit.backend
        assert backend is not None
        return backend.take(self.piece)
