"""Made-up arguments for a graph: the same values on every machine, and none that makes a sane graph overflow."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec

# Positive and not small: a second moment's root, a norm's reciprocal and a logarithm are all well defined.
LOW, HIGH = 0.25, 1.0


def example(graph: Graph, seed: int = 0) -> list[Tensor]:
    """One CPU tensor for each argument: uniform in [0.25, 1) for floats, 0 and 1 for integers and bools.

    A function `example_<name>` beside the graph's own takes these and returns better ones, where the graph's results
    would say little on just any values.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = [_tensor(spec, generator) for spec in graph.args]
    module, _, name = graph.function.partition(":")
    better: Callable[[list[Tensor]], list[Tensor]] | None
    better = getattr(importlib.import_module(module), f"example_{name}", None)
    return tensors if better is None else better(tensors)


def _tensor(spec: TensorSpec, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return (torch.rand(spec.shape, generator=generator) * (HIGH - LOW) + LOW).to(dtype)
    return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)
