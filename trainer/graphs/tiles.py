"""Between a weight as the layer's graphs see it and the flat tiles that AdamW's graph sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def cast(
    total: Tensor,  # [n] float32: a tile of a gradient, summed over the micro-batches
    *,
    dtype: str,
) -> Tensor:
    """The gradient as AdamW takes it, [n] of `dtype`, rounded once."""
    return total.to(getattr(torch, dtype))


def join(
    *tiles: Tensor,  # [n] compute each, flat
    shape: Sequence[int],
) -> Tensor:
    """The tiles of a weight, in order, as the matrix that the layer's graphs take: `shape`, compute."""
    return torch.cat(tiles).reshape(list(shape))
