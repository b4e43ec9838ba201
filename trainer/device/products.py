"""Products of bfloat16 matrices on a CPU that has no instructions for them.

torch multiplies them number by number there: 1 s for [512, 3072] @ [3072, 576] on two cores with AVX2, where float32
takes 0.05 s. The product of two bfloat16 numbers is exact in float32, so a float32 product, rounded once, is what the
instructions compute too, but for the order of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset(
    (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.matmul, torch.mm, torch.bmm)
)
# As torch names what it was built for and the CPU has; oneDNN multiplies bfloat16 matrices from AVX-512 on.
_WITHOUT_BFLOAT16 = frozenset(("DEFAULT", "AVX2"))


def fast_products() -> AbstractContextManager[object]:
    """A block in which products of bfloat16 matrices are as fast as this CPU can make them."""
    slow = torch.backends.cpu.get_cpu_capability() in _WITHOUT_BFLOAT16
    return Float32Products() if slow else nullcontext()


class Float32Products(TorchFunctionMode):
    """Makes every product of bfloat16 matrices in the block a float32 one, rounded once."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and all(factor.dtype is torch.bfloat16 for factor in args):
            return func(*(factor.float() for factor in args)).to(torch.bfloat16)
        return func(*args, **(kwargs or {}))
