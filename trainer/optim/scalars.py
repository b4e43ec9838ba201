"""AdamW's scalars as a pure function of the step: computed in float64, rounded to float32 once.

Every unit of a step, on the host or on a device, gets the same ones, so bias corrections cannot differ between layers,
and a resumed run needs no more than the number of its next step.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from graphcache.errors import UsageError

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class AdamSettings:
    """What holds for a whole run; `weight_decay` is for matrices alone.

    Raises UsageError for an eps below float32's normal numbers: it would divide by zero, on a card in any case.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        assert 0 <= self.beta1 < 1
        assert 0 <= self.beta2 < 1
        if self.eps < SMALLEST_NORMAL:
            raise UsageError(
                f"eps {self.eps} is no normal float32: the smallest is {SMALLEST_NORMAL:.3g}",
                hint="cards flush smaller numbers to zero; the usual one is 1e-8",
            )


@dataclass(frozen=True, kw_only=True)
class StepScalars:
    """The one-element arguments of `trainer.graphs.adamw.adamw`, in its order."""

    grad_scale: float
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    step_size: float
    inv_sqrt_bias_correction2: float
    eps: float
    decay: float

    @classmethod
    def at(cls, step: int, lr: float, settings: AdamSettings, *, decays: bool, grad_scale: float = 1.0) -> StepScalars:
        """Step number `step`, which counts from 1. decays: the parameter is a matrix."""
        assert step >= 1, step
        beta1, beta2 = settings.beta1, settings.beta2
        return cls(
            grad_scale=grad_scale,
            beta1=beta1,
            one_minus_beta1=1 - beta1,
            beta2=beta2,
            one_minus_beta2=1 - beta2,
            step_size=lr / (1 - beta1**step),
            inv_sqrt_bias_correction2=1 / math.sqrt(1 - beta2**step),
            eps=settings.eps,
            decay=1 - lr * settings.weight_decay if decays else 1.0,
        )

    def tensor(self) -> Tensor:
        """[9] float32"""
        return torch.tensor(astuple(self), dtype=torch.float64).to(torch.float32)
