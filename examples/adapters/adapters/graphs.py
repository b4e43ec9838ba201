"""What runs on a card: two small models, and their optimizer. Each function at the top level is a graph.

A low-rank adapter (Hu et al. 2021, https://arxiv.org/abs/2106.09685) and an MLP of two layers, for t tokens, width h,
rank r and inner width i, in float32. The loss is sum((y - target)^2) / 2, so the gradient of y is the error.
"""

from __future__ import annotations

import torch
from torch import Tensor


def adapter(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """y [t, h] from x [t, h], a [r, h], b [h, r]"""
    return x @ a.t() @ b.t()


def adapter_backward(error: Tensor, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a [r, h] and b [h, r]; x @ a^T, which is small, is computed anew."""
    return (error @ b).t() @ x, error.t() @ (x @ a.t())


def mlp(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """inner [t, i] and y [t, h] from x [t, h], up [i, h], down [h, i]"""
    inner = torch.relu(x @ up.t())
    return inner, inner @ down.t()


def mlp_backward(error: Tensor, x: Tensor, inner: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of up [i, h] and down [h, i]"""
    dinner = torch.where(inner > 0, error @ down, 0.0)
    return dinner.t() @ x, error.t() @ inner


def adamw(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: Tensor,
    root: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new weight and moments, [n] each (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101).

    rate: lr / (1 - beta1^step), root: sqrt(1 - beta2^step), [1] each, since they change from step to step
    """
    mean = beta1 * mean + (1 - beta1) * grad
    square = beta2 * square + (1 - beta2) * grad * grad
    return weight * (1 - lr * decay) - rate * mean / (torch.sqrt(square) / root + eps), mean, square


def example_adamw(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Arguments for a proof, instead of any numbers: means of squares, and the scalars of a step."""
    weight, grad, mean, square = tensors[:4]
    step = 10 ** (1 + number)
    rate, root = 1e-2 / (1 - 0.9**step), (1 - 0.999**step) ** 0.5
    return [weight, grad, mean, square.abs(), torch.tensor([rate]), torch.tensor([root])]
