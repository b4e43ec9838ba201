"""AdamW on the host, in place and in one pass: bit for bit what `trainer.graphs.adamw` gives when torch runs it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.host.lanes import WIDE
from trainer.optim.base import AdamState
from trainer.optim.kernel import kernels


def adamw_(state: AdamState, grad: Tensor, weight: Tensor, scalars: Tensor) -> None:
    """Update `state` in place and write the new weight.

    state:   flat float32 [n] each
    grad:    [n] bfloat16 or float32
    weight:  [n] of grad's dtype, written only
    scalars: [9] float32, `StepScalars.tensor()`

    Everything is contiguous host memory. Other threads run meanwhile, on other elements. NaN is a NaN of any payload in
    float32, and 0xffff in bfloat16.
    """
    arrays = (state.master, state.exp_avg, state.exp_avg_sq, grad, weight, scalars)
    elements = state.master.numel()
    assert all(a.is_contiguous() and a.device.type == "cpu" for a in arrays)
    assert all(a.dtype == torch.float32 for a in (*arrays[:3], scalars))
    assert all(a.numel() == elements for a in arrays[:5])
    assert grad.dtype == weight.dtype
    kernels().update[grad.dtype](*(a.data_ptr() for a in arrays), elements)


def square_sum(grad: Tensor) -> float:
    """The sum of the squares of grad [n], bfloat16 or float32, in float64 and in an order that only n decides."""
    assert grad.is_contiguous()
    sums = torch.empty(WIDE + 1, dtype=torch.float64)
    kernels().square_sum[grad.dtype](grad.data_ptr(), sums.data_ptr(), grad.numel())
    return math.fsum(sums.tolist())
