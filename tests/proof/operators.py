"""Small graphs of operators that the catalogs do not call and other projects do."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def relu_layer(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w.t())


def relu_gradient(error: Tensor, inner: Tensor, w: Tensor) -> Tensor:
    return torch.where(inner > 0, error @ w, 0.0)


def relu_of_a_sum(x: Tensor, y: Tensor) -> Tensor:
    """The comparison is of what was rounded."""
    total = x + y
    return torch.where(total > 0, total, 0.0)


def tanh(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x + y)


def silu(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


def log_of_exp(x: Tensor, y: Tensor) -> Tensor:
    return torch.log(torch.exp(x.clamp(-4, 4)) + y.abs() + 1)


def log_softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(x + y, -1)


def powers(x: Tensor, y: Tensor) -> Tensor:
    return x**2 + torch.reciprocal(y.abs() + 1) + (y.abs() + 1) ** 0.5


def largest_and_smallest(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y) - torch.minimum(x, y)
