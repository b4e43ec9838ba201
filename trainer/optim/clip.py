"""Clipping by the global norm, as `torch.nn.utils.clip_grad_norm_` does; no order of the sums can change it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphcache.errors import GraphcacheError

# What torch adds to the norm before dividing by it.
MARGIN = 1e-6


class NonFiniteGradientError(GraphcacheError):
    """The norm of the gradients is infinite or not a number; no update was made."""

    name = "non-finite-gradient"


def global_norm(square_sums: Iterable[float]) -> float:
    """L2 norm from the pieces' sums of squares. `fsum` rounds once, so workers and devices cannot change a bit."""
    return math.sqrt(math.fsum(square_sums))


def clip_factor(norm: float, largest: float) -> float:
    """What every gradient is multiplied by: 1 for a norm of at most `largest`. Raises NonFiniteGradientError."""
    if not math.isfinite(norm):
        raise NonFiniteGradientError(
            f"the norm of the gradients is {norm}",
            hint="the weights are as they were before the step; lower --lr, or look at the step's data",
        )
    return min(1.0, largest / (norm + MARGIN))
