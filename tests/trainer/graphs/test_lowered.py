"""Each graph of layer and head as the vendor lowers it: right ones are proven, those of wrong functions are not.

With float32 as the compute dtype, products are float32 too, since their catalogs forbid the compiler its casts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from graphcache.catalog import CatalogOptions
from graphcache.export.program import export
from graphcache.graph import Graph
from graphcache.proof.check import prove
from graphcache.runtime.furiosa import HostExecutor
from graphcache.toolchain.furiosa import FuriosaCompiler
from trainer.architecture.config import ModelConfig
from trainer.catalogs import head, layer

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
DTYPES = ("bfloat16", "float32")
# float32 is the same functions; these stand for all.
IN_FLOAT32 = {"rms_norm", "linear", "softmax", "weight_grad", "attend_backward", "chunk_forward"}


def graphs() -> dict[str, Graph]:
    """Each function of layer and head once, and what Qwen2 has of its own."""
    found: dict[str, Graph] = {}
    for dtype in DTYPES:
        for config in MODELS.values():
            parsed, options = ModelConfig.from_json(config), CatalogOptions(sequence=SEQUENCE, dtype=dtype)
            for graph in (layer.parts(parsed, options) | head.parts(parsed, options)).values():
                name = graph.function.partition(":")[2] + ("-bias" if "bias" in graph.name else "")
                if dtype == "bfloat16" or name in IN_FLOAT32:
                    found.setdefault(f"{dtype}-{name}", graph)
    return found


GRAPHS = graphs()


@cache
def compiler() -> FuriosaCompiler:
    return FuriosaCompiler(FUSION, Path(mkdtemp()))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_lowered_graph_is_proven(name: str) -> None:
    graph = GRAPHS[name]
    executor = HostExecutor(compiler().compile(export(graph), graph.settings).dfg, fusion=FUSION)
    found = prove(graph, executor.execute, sets=2)
    print(f"{name}: " + " ".join(f"{result.share:.2g}" for result in found.results if result.share is not None))
    assert found.state == "proven", found.reason


# Whole functions with a fault each, compiled: the program is as right as a compiler makes it, and of another function.
FAULTS = {
    "a row dropped": ("bfloat16-add", "tests.support.faults:add_without_last_row"),
    "twice the largest": ("bfloat16-chunk_forward", "tests.support.faults:chunk_forward_twice_the_largest"),
    "eps": ("bfloat16-rms_norm", "tests.support.faults:rms_norm_other_eps"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_lowered_graph_of_a_wrong_function_is_disproven(fault: str) -> None:
    name, function = FAULTS[fault]
    graph = GRAPHS[name]
    wrong = replace(graph, function=function)
    executor = HostExecutor(compiler().compile(export(wrong), wrong.settings).dfg, fusion=FUSION)
    assert prove(graph, executor.execute, sets=2).state == "disproven"
