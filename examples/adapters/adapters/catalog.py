"""Which graphs there are, for which sizes. No torch: this runs at every start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphcache import CatalogOptions, Graph, Listing, TensorSpec, TensorTable

ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 1e-2}


def catalog(
    table: TensorTable,
    config: Mapping[str, Any] | None,
    options: CatalogOptions,
    *,
    tokens: int = 32,
    width: int = 256,
    rank: int = 16,
    inner: int = 128,
) -> Listing:
    """No model is needed: the sizes are options. `--set adapters.rank=32`"""
    x, y, low = ("x", (tokens, width)), ("error", (tokens, width)), ("inner", (tokens, inner))
    a, b = ("a", (rank, width)), ("b", (width, rank))
    up, down = ("up", (inner, width)), ("down", (width, inner))
    graphs = [
        _graph("adapter", x, a, b),
        _graph("adapter_backward", y, x, a, b),
        _graph("mlp", x, up, down),
        _graph("mlp_backward", y, x, low, down),
        *(_adamw(size) for size in sorted({rank * width, inner * width})),
    ]
    return Listing(tuple(graphs), ())


def _graph(function: str, *args: tuple[str, tuple[int, ...]], **constants: float) -> Graph:
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in args)
    name = f"{function}[{'x'.join(str(size) for size in specs[0].shape)}]"
    return Graph(name, "adapters", f"adapters.graphs:{function}", specs, constants=constants)


def _adamw(size: int) -> Graph:
    vectors = [(name, (size,)) for name in ("weight", "grad", "mean", "square")]
    return _graph("adamw", *vectors, ("rate", (1,)), ("root", (1,)), **ADAMW)
