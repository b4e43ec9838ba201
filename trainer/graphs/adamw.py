"""One AdamW step (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101) as a graph of flat vectors.

The same lines are the device's program (compiled), the cpu backend's (run eagerly) and the reference that the host
kernel agrees with bit for bit. Everything that a run can set is an argument, so that no setting forces a recompile.
"""

from __future__ import annotations

import torch
from torch import Tensor


def adamw(
    master: Tensor,  # [n] float32
    exp_avg: Tensor,  # [n] float32
    exp_avg_sq: Tensor,  # [n] float32
    grad: Tensor,  # [n] bfloat16 (float32 where that is the compute dtype)
    grad_scale: Tensor,  # [1] float32: 1, or the clip factor
    beta1: Tensor,  # [1] float32
    one_minus_beta1: Tensor,  # [1] float32
    beta2: Tensor,  # [1] float32
    one_minus_beta2: Tensor,  # [1] float32
    step_size: Tensor,  # [1] float32: lr / (1 - beta1^t)
    inv_sqrt_bias_correction2: Tensor,  # [1] float32: 1 / sqrt(1 - beta2^t)
    eps: Tensor,  # [1] float32
    decay: Tensor,  # [1] float32: 1 - lr * weight_decay
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The updated master, exp_avg and exp_avg_sq, [n] float32 each, and the weight, [n] in the gradient's dtype.

    Scalars that are functions of the step arrive already computed (`trainer.optim.scalars`), so an element costs one
    square root and one division.
    """
    scaled = grad.to(torch.float32) * grad_scale
    exp_avg = exp_avg * beta1 + scaled * one_minus_beta1
    exp_avg_sq = exp_avg_sq * beta2 + scaled * scaled * one_minus_beta2
    denominator = square_root(exp_avg_sq) * inv_sqrt_bias_correction2 + eps
    master = master * decay - exp_avg / denominator * step_size
    return master, exp_avg, exp_avg_sq, master.to(grad.dtype)


def square_root(x: Tensor) -> Tensor:
    """The correctly rounded square root, [n] float32.

    On x86 eager torch leaves it to MKL, which is off by one unit in the last place for a fifth of all numbers, so that
    results would depend on the machine. Taken in float64 and rounded back it is exact: a root of a 24-bit number is at
    least four of float64's units away from a tie. An exported program, and the host kernel, have the one operation.
    """
    if torch.compiler.is_exporting() or not isinstance(x, Tensor):
        return x.sqrt()
    return x.to(torch.float64).sqrt().to(torch.float32)


def example_adamw(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Arguments for a proof: vectors as they come, second moments of squares, the scalars of an ordinary run's step."""
    lr, beta1, beta2, step = 1e-3, 0.9, 0.999, 10 ** (1 + number)
    step_size, inv_sqrt = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    scalars = (0.75, beta1, 1 - beta1, beta2, 1 - beta2, step_size, inv_sqrt, 1e-8, 1 - lr * 0.1)
    master, exp_avg, exp_avg_sq, grad = tensors[:4]
    return [master, exp_avg, exp_avg_sq.abs(), grad, *(torch.tensor([v], dtype=torch.float32) for v in scalars)]
