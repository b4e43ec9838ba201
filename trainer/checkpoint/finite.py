"""Numbers that are not finite are never saved: the next run could only go on from them to nowhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.checkpoint.tensors import CheckpointError
from trainer.optim.base import AdamState


class NonFiniteStateError(CheckpointError):
    """An update has made a weight or a moment that is not a number, or infinite."""

    name = "non-finite-state"


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; any floating-point dtype, at least one element. One pass, no memory."""
    return all(math.isfinite(extreme.item()) for extreme in torch.aminmax(tensor))


def check_finite(name: str, state: AdamState) -> None:
    """Raises NonFiniteStateError naming the parameter."""
    for part, tensor in vars(state).items():
        if not is_finite(tensor):
            raise NonFiniteStateError(
                f"{name}: {part} holds numbers that are not finite",
                hint="an update overflowed: begin a new run with --model the newest checkpoint, and a lower --lr, or "
                "--clip-norm, which sees such gradients before the update",
            )
