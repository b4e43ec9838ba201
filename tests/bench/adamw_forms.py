"""The AdamW graph written in other ways, to see what each costs: `python -m tests.bench.adamw_tiles --form NAME`.

All take the arguments of `trainer.graphs.adamw.adamw`, whichever they use.
"""

from __future__ import annotations

import torch
from torch import Tensor

Results = tuple[Tensor, Tensor, Tensor, Tensor]


def constants(master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, *scalars: Tensor) -> Results:
    """Hyperparameters and bias corrections fixed in the program: what an edit of the learning rate would recompile."""
    scaled = grad.to(torch.float32) * 1.0
    exp_avg = exp_avg * 0.9 + scaled * 0.1
    exp_avg_sq = exp_avg_sq * 0.999 + scaled * scaled * 0.001
    denominator = exp_avg_sq.sqrt() * 10.0 + 1e-8
    master = master * 0.9999 - exp_avg / denominator * 1e-3
    return master, exp_avg, exp_avg_sq, master.to(grad.dtype)


def interpolated(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, grad_scale: Tensor, *scalars: Tensor
) -> Results:
    """Moments as torch.optim writes them: m + (g - m) * (1 - beta)."""
    _, one_minus_beta1, _, one_minus_beta2, step_size, inv_sqrt, eps, decay = scalars
    scaled = grad.to(torch.float32) * grad_scale
    exp_avg = exp_avg + (scaled - exp_avg) * one_minus_beta1
    exp_avg_sq = exp_avg_sq + (scaled * scaled - exp_avg_sq) * one_minus_beta2
    denominator = exp_avg_sq.sqrt() * inv_sqrt + eps
    master = master * decay - exp_avg / denominator * step_size
    return master, exp_avg, exp_avg_sq, master.to(grad.dtype)


def reciprocal(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, grad_scale: Tensor, *scalars: Tensor
) -> Results:
    """A product with a reciprocal in place of the division."""
    beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt, eps, decay = scalars
    scaled = grad.to(torch.float32) * grad_scale
    exp_avg = exp_avg * beta1 + scaled * one_minus_beta1
    exp_avg_sq = exp_avg_sq * beta2 + scaled * scaled * one_minus_beta2
    factor = (exp_avg_sq.sqrt() * inv_sqrt + eps).reciprocal()
    master = master * decay - exp_avg * factor * step_size
    return master, exp_avg, exp_avg_sq, master.to(grad.dtype)
