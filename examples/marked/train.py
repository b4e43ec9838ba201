"""A low-rank adapter trained by torch, its AdamW by a marked graph: what runs is what the cache holds.

    python train.py --record shapes.json       which graphs the training calls; torch computes them
    PYTHONPATH=. graphcache build --from train --shapes shapes.json
    python train.py                            the same steps, from the cache alone

The task: find a and b of rank 64 so that x @ a^T @ b^T is what a fixed linear map makes of x.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
from torch import Tensor

import graphcache

T, H = 64, 64
LR, BETA1, BETA2, EPS, DECAY = 1e-2, 0.9, 0.999, 1e-8, 1e-2


def forward(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """low = x @ a^T [t, r], and low @ b^T [t, h]"""
    low = x @ a.t()
    return low, low @ b.t()


def backward(error: Tensor, x: Tensor, low: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a [r, h] and b [h, r] for the loss sum(error^2) / 2."""
    return (error @ b).t() @ x, error.t() @ low


@graphcache.compiled("n", "n", "n", "n", "1", "1")
def adamw(w: Tensor, grad: Tensor, m: Tensor, v: Tensor, rate: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101. rate: lr / (1 - beta1^t); root: sqrt(1 - beta2^t)."""
    m = BETA1 * m + (1 - BETA1) * grad
    v = BETA2 * v + (1 - BETA2) * grad * grad
    return w * (1 - LR * DECAY) - rate * m / (torch.sqrt(v) / root + EPS), m, v


def train(steps: int) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    x, target = torch.randn(T, H) / H**0.5, torch.randn(T, H) / H**0.5
    weights = [torch.randn(H * H) / H**0.5, torch.zeros(H * H)]
    moments = [(torch.zeros(H * H), torch.zeros(H * H)) for _ in weights]
    losses = []
    for step in range(1, steps + 1):
        a, b = (weight.view(H, H) for weight in weights)
        low, y = forward(x, a, b)
        error = y - target
        losses.append(float((error * error).sum() / 2))
        rate, root = torch.tensor([LR / (1 - BETA1**step)]), torch.tensor([(1 - BETA2**step) ** 0.5])
        for i, grad in enumerate(backward(error, x, low, b)):
            weights[i], *rest = adamw(weights[i], grad.reshape(-1), *moments[i], rate, root)
            moments[i] = (rest[0], rest[1])
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", metavar="FILE", help="compute by torch, and write down which graphs are called")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    with graphcache.record(options.record) if options.record else nullcontext():
        for step, loss in enumerate(train(options.steps), 1):
            print(f"step {step}  loss {loss:.6f}")


if __name__ == "__main__":
    main()
