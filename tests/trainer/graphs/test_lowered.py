"""Each graph of layer and head as the vendor lowers it, on the vendor's host executor, against float64.

The bounds are docs/results/graphs.md's: relative Frobenius errors of the lowered graph. bfloat16 rounds at 3.9e-3 at
most an element. Under the float32 policy products are float32 too, since their catalogs forbid the compiler its casts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor

from graphcache.build.check import relative_error
from graphcache.catalog import CatalogOptions
from graphcache.export.program import export
from graphcache.graph import Graph
from graphcache.runtime.furiosa import HostExecutor
from graphcache.toolchain.furiosa import FuriosaCompiler
from graphcache.verify.numeric import evaluate_wide
from trainer.catalogs import head, layer
from trainer.model.config import ModelConfig
from trainer.model.rope import causal_mask

pytestmark = pytest.mark.compiler

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
MODELS = {"llama": SIZES | {"model_type": "llama"}, "qwen2": SIZES | {"model_type": "qwen2"}}
SEQUENCE = 64
FUSION = 8
# Two roundings of a result to bfloat16 and the products between them; sums of exponentials add their own.
BOUNDS = {"bfloat16": 6e-3, "float32": 2e-6}
# float32 is the same functions; these stand for all.
IN_FLOAT32 = {"rms_norm", "linear", "softmax", "weight_grad", "attend_backward", "chunk_forward"}


def graphs() -> dict[str, Graph]:
    """Each function of layer and head once, and what Qwen2 has of its own."""
    found: dict[str, Graph] = {}
    for dtype in BOUNDS:
        for config in MODELS.values():
            parsed, options = ModelConfig.from_json(config), CatalogOptions(sequence=SEQUENCE, dtype=dtype)
            for graph in (layer.parts(parsed, options) | head.parts(parsed, options)).values():
                name = graph.function.partition(":")[2] + ("-bias" if "bias" in graph.name else "")
                if dtype == "bfloat16" or name in IN_FLOAT32:
                    found.setdefault(f"{dtype}-{name}", graph)
    return found


GRAPHS = graphs()


def inputs(graph: Graph) -> list[Tensor]:
    """Values as in training: activations around 1, small weights, a causal mask, probabilities that sum to 1."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for spec in graph.args:
        values = torch.randn(spec.shape, generator=generator)
        if spec.name.endswith("weight"):
            values = values / spec.shape[-1] ** 0.5
        elif spec.name == "mask":
            values = causal_mask(SEQUENCE, spec.shape[0] // SEQUENCE)
        elif spec.name in ("probabilities", "weights"):
            values = values.softmax(-1)
        elif spec.name == "log_sum_exp":
            values = values + 5.0
        tensors.append(values.to(getattr(torch, spec.dtype)))
    return tensors


@cache
def compiler() -> FuriosaCompiler:
    return FuriosaCompiler(FUSION, Path(mkdtemp()))


def run_lowered(graph: Graph, args: Sequence[Tensor]) -> list[Tensor]:
    compiled = compiler().compile(export(graph), graph.settings)
    return HostExecutor(compiled.dfg, fusion=FUSION).execute(args)


@pytest.mark.parametrize("name", GRAPHS)
def test_lowered_graph_is_as_near_to_float64_as_stated(name: str) -> None:
    graph = GRAPHS[name]
    args = inputs(graph)
    results, expected = run_lowered(graph, args), evaluate_wide(graph, args)
    dtype = name.partition("-")[0]
    errors = [relative_error(got.double(), want) for got, want in zip(results, expected, strict=True)]
    print(f"{name}: " + " ".join(f"{error:.1e}" for error in errors))
    assert max(errors) <= BOUNDS[dtype]
