"""Functions that are marked as graphs."""

from __future__ import annotations

from torch import Tensor

from graphcache import compiled


@compiled("t h", "o h", dtype="bfloat16")
def project(x: Tensor, w: Tensor) -> Tensor:
    """x @ w^T"""
    return x @ w.t()


@compiled("4 h", "")
def scaled(x: Tensor, by: Tensor, *, times: float = 1.0) -> Tensor:
    return x * by * times


@compiled()
def anything(x: Tensor) -> Tensor:
    return x + 1
