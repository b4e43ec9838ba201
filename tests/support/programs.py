"""Functions that are the same program written differently, and others that are not. Graphs of tests of exporting."""

from __future__ import annotations

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec

TABLE = torch.tensor([1.0, 2.0, 3.0, 4.0])
OTHER_TABLE = torch.tensor([1.0, 2.0, 3.0, 5.0])


def scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    total = x + y
    return total * 2.0


def _added(first: Tensor, second: Tensor) -> Tensor:
    return first + second


def renamed(left: Tensor, right: Tensor) -> Tensor:
    """Other names, a helper, a docstring, and a statement that computes nothing."""
    unused = 3
    del unused
    both = _added(left, right)
    return both * 2.0


def other_constant(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * 2.5


def integer_constant(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * 2


def other_operator(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) * 2.0


def other_order(x: Tensor, y: Tensor) -> Tensor:
    return (y + x) * 2.0


def two_results(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, (x - y).to(torch.bfloat16)


def with_table(x: Tensor, y: Tensor) -> Tensor:
    return x * TABLE + y


def with_equal_table(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + y


def with_other_table(x: Tensor, y: Tensor) -> Tensor:
    return x * OTHER_TABLE + y


def with_keyword(x: Tensor, y: Tensor, *, times: float) -> Tensor:
    return (x + y) * times


def branches_on_values(x: Tensor, y: Tensor) -> Tensor:
    return x if x.sum() > 0 else y


def returns_no_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    return x + y, 1.0


def rounds_through_half(x: Tensor, y: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float32) + torch.zeros(4, dtype=torch.float32) + y


def returns_a_view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, y.reshape(-1, 2)


def returns_what_it_was_given(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total = x + y
    return (
        total,
        y.reshape(-1, 2),
        x,
        total,
    )


def log_of_sum(x: Tensor, y: Tensor) -> Tensor:
    """The compiler has no such operator."""
    return torch.logsumexp(x + y, -1, keepdim=True)


def sorted_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.sort(x + y)[0]


def graph_of(function: str, shape: tuple[int, ...] = (4,), dtype: str = "float32", **constants: object) -> Graph:
    args = tuple(TensorSpec(name, dtype, shape) for name in ("x", "y"))
    return Graph(function, "programs", f"{__name__}:{function}", args, constants=constants)
