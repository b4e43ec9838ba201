"""Made-up arguments for a graph: the same values on every machine, and none that makes a sane graph overflow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec

# Positive and not small: a second moment's root, a norm's reciprocal and a logarithm are all well defined.
LOW, HIGH = 0.25, 1.0


def example(graph: Graph, seed: int = 0) -> list[Tensor]:
    """One CPU tensor for each argument: uniform in [0.25, 1) for floats, 0 and 1 for integers and bools."""
    return example_tensors(graph.args, seed)


def example_tensors(specs: Sequence[TensorSpec], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [_tensor(spec, generator) for spec in specs]


def _tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return (torch.rand(spec.shape, generator=generator) * (HIGH - LOW) + LOW).to(dtype)
    return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)
