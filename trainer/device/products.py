"""Products of matrices on the host: into memory of ours, and fast where the CPU lacks bfloat16.

On a CPU without instructions for bfloat16 torch multiplies such numbers one by one: 1 s for [512, 3072] @ [3072, 576]
on two cores with AVX2, where float32 takes 0.05 s. The product of two bfloat16 numbers is exact in float32, so a
float32 product, rounded once, is what the instructions compute too, but for the order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainer.host.pages import copy, empty

_PRODUCTS = frozenset(
    (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.matmul, torch.mm, torch.bmm)
)
# As torch names what it was built for and the CPU has; oneDNN multiplies bfloat16 matrices from AVX-512 on.
_WITHOUT_BFLOAT16 = frozenset(("DEFAULT", "AVX2"))


def bfloat16_is_slow() -> bool:
    """Whether torch multiplies bfloat16 numbers one by one on this CPU."""
    return torch.backends.cpu.get_cpu_capability() in _WITHOUT_BFLOAT16


class HostProducts(TorchFunctionMode):
    """A block whose products of two matrices, or of two batches of them, are made so."""

    def __init__(self, *, by_float32: bool | None = None) -> None:
        """by_float32: whether bfloat16 matrices are multiplied as float32 ones; None: where this CPU is faster so"""
        super().__init__()
        self._by_float32 = bfloat16_is_slow() if by_float32 is None else by_float32

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and not kwargs:
            return self._product(*args)
        return func(*args, **(kwargs or {}))

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        if self._by_float32 and a.dtype is b.dtype is torch.bfloat16:
            return _by_float32(a, b)
        return torch.matmul(a, b, out=empty((*a.shape[:-1], b.shape[-1]), a.dtype))


def _by_float32(a: Tensor, b: Tensor) -> Tensor:
    """Matrix by matrix: the float32 copies of one are in the CPU's cache when it multiplies them, and those of the next
    take their memory."""
    result = empty((*a.shape[:-1], b.shape[-1]), torch.bfloat16)
    pairs = zip(result, a, b, strict=True) if a.dim() == 3 == b.dim() else [(result, a, b)]
    for into, left, right in pairs:
        wide = empty(into.shape, torch.float32)
        into.copy_(torch.matmul(_widened(left), _widened(right), out=wide))
    return result


def _widened(x: Tensor) -> Tensor:
    """x in float32, lying in memory as x does: torch multiplies a transposed matrix as fast as any other, but copies it
    row by row at 3.5 ns an element, and as it lies at 0.8 (AMD EPYC of the first generation)."""
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return copy(x.transpose(-1, -2), torch.float32).transpose(-1, -2)
    return copy(x, torch.float32)
