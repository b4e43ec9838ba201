"""The learning rate of a step: a pure function of its number, advanced per optimizer step and never per micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Rises to `peak` over `warmup_steps`, then follows `kind`.

    kind:  `constant`, or `linear` or `cosine`, which reach zero one step after the last, so that no step is wasted
    steps: optimizer steps of the whole run, warm-up included
    """

    peak: float
    kind: str
    warmup_steps: int
    steps: int

    def __post_init__(self) -> None:
        assert self.kind in SHAPES, self.kind

    def at(self, step: int) -> float:
        """The learning rate of step number `step`, which counts from 1."""
        assert step >= 1, step
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        done = (step - 1 - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.peak * SHAPES[self.kind](min(done, 1.0))


# What is left of the peak when the part `done` of the steps after warm-up, 0 to 1, is behind.
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
