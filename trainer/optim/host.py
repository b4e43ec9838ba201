"""AdamW on the host, in place and in one pass: bit for bit what `trainer.graphs.adamw` gives when torch runs it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.host.lanes import ELEMENT, FLOAT, WIDE
from trainer.host.pages import described
from trainer.optim.base import AdamState
from trainer.optim.kernel import SCALARS, STATE, kernels


def adamw_(state: AdamState, grad: Tensor, weight: Tensor, scalars: Tensor) -> None:
    """Update `state` in place and write the new weight.

    state:   flat float32 [n] each
    grad:    [n] bfloat16 or float32
    weight:  [n] of grad's dtype, written only
    scalars: [9] float32, `StepScalars.tensor()`

    Everything is contiguous host memory, else ValueError is raised. Other threads run meanwhile, on other elements. NaN
    is a NaN of any payload in float32, and 0xffff in bfloat16.
    """
    arrays = {**{name: getattr(state, name) for name in STATE}, "grad": grad, "weight": weight}
    elements = state.master.numel()
    for name, array in arrays.items():
        _check(name, array, grad.dtype if name in ("grad", "weight") else FLOAT, elements)
    _check("scalars", scalars, FLOAT, len(SCALARS))
    addresses = (array.data_ptr() for array in (*arrays.values(), scalars))
    kernels().update[grad.dtype](*addresses, elements)


def square_sum(grad: Tensor) -> float:
    """The sum of the squares of grad [n], bfloat16 or float32, in float64 and in an order that only n decides.

    Raises ValueError when it is not contiguous host memory.
    """
    _check("grad", grad, grad.dtype, grad.numel())
    sums = torch.empty(WIDE + 1, dtype=torch.float64)
    kernels().square_sum[grad.dtype](grad.data_ptr(), sums.data_ptr(), grad.numel())
    return math.fsum(sums.tolist())


def _check(name: str, array: Tensor, dtype: torch.dtype, elements: int) -> None:
    """Check that machine code may be given the array's address. Raises ValueError."""
    fits = array.is_cpu and array.is_contiguous() and array.dtype == dtype and array.numel() == elements
    if not fits or dtype not in ELEMENT:
        needed = f"{elements} contiguous numbers of {dtype} in host memory are needed"
        raise ValueError(f"{name} is {described(array)}: {needed}")
