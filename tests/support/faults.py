"""Graphs' functions with a fault each, as a compiler might make it: what is compiled from them must be disproven."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.graphs import head, layer


def add_without_last_row(total: Tensor, grad: Tensor) -> Tensor:
    return total + torch.cat((grad[:-1], torch.zeros_like(grad[-1:])))


def chunk_forward_twice_the_largest(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits, largest, _ = head.chunk_forward(hidden, weight)
    twice = largest * 2.0
    return logits, twice, torch.exp(logits.to(torch.float32) - twice[:, None]).sum(-1)


def rms_norm_other_eps(x: Tensor, norm: Tensor, *, eps: float) -> Tensor:
    return layer.rms_norm(x, norm, eps=2 * eps)
