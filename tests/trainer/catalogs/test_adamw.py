"""The AdamW catalog: which graphs a model's weights need, and how weights are cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.catalog import CatalogOptions
from graphcache.header.table import TensorInfo, TensorTable
from trainer.catalogs.adamw import catalog, graph, tiles

OPTIONS = CatalogOptions()


def table(*tensors: tuple[str, tuple[int, ...]]) -> TensorTable:
    return TensorTable(tuple(TensorInfo(name, "BF16", shape, 2 * math.prod(shape)) for name, shape in sorted(tensors)))


def layers(count: int, **weights: tuple[int, ...]) -> TensorTable:
    named = [(f"model.layers.{i}.{w.replace('__', '.')}", s) for i in range(count) for w, s in weights.items()]
    return table(*named, ("model.embed_tokens.weight", (1000, 64)), ("lm_head.weight", (1000, 64)))


LLAMA_8B = layers(
    32,
    self_attn__q_proj__weight=(4096, 4096),
    self_attn__k_proj__weight=(1024, 4096),
    self_attn__v_proj__weight=(1024, 4096),
    self_attn__o_proj__weight=(4096, 4096),
    mlp__gate_proj__weight=(14336, 4096),
    mlp__up_proj__weight=(14336, 4096),
    mlp__down_proj__weight=(4096, 14336),
    input_layernorm__weight=(4096,),
    self_attn__q_proj__bias=(4096,),
)


def test_llama_8b_needs_two_graphs_and_at_most_seven_calls_a_weight() -> None:
    listing = catalog(LLAMA_8B, None, OPTIONS)
    assert [g.name for g in listing.graphs] == ["adamw[8388608]", "adamw[4194304]"]
    calls = {use.what: (use.graph, use.count, use.calls) for use in listing.uses}
    assert calls == {
        "mlp.down_proj.weight": ("adamw[8388608]", 32, 7),
        "mlp.gate_proj.weight": ("adamw[8388608]", 32, 7),
        "mlp.up_proj.weight": ("adamw[8388608]", 32, 7),
        "self_attn.k_proj.weight": ("adamw[4194304]", 32, 1),
        "self_attn.o_proj.weight": ("adamw[8388608]", 32, 2),
        "self_attn.q_proj.weight": ("adamw[8388608]", 32, 2),
        "self_attn.v_proj.weight": ("adamw[4194304]", 32, 1),
    }


def test_norms_biases_embedding_and_head_are_no_ones_business_here() -> None:
    listing = catalog(layers(2, norm__weight=(64,), q__bias=(64,)), None, OPTIONS)
    assert listing.graphs == ()
    assert listing.uses == ()


def test_weights_of_equal_element_counts_share_a_graph() -> None:
    listing = catalog(layers(3, a__weight=(8, 32), b__weight=(16, 16), c__weight=(4, 4)), None, OPTIONS)
    assert [g.name for g in listing.graphs] == ["adamw[256]", "adamw[16]"]


def test_a_weight_that_does_not_divide_has_a_smaller_last_tile() -> None:
    # Qwen2.5-7B's MLP: eight equal tiles would each be larger than the default tile.
    listing = catalog(layers(28, mlp__up_proj__weight=(18944, 3584)), None, OPTIONS)
    assert [(use.graph, use.calls) for use in listing.uses] == [("adamw[8388608]", 8), ("adamw[786432]", 1)]


def test_the_graph_takes_the_policys_gradient_and_nine_scalars() -> None:
    found = graph(16, "bfloat16")
    assert [(a.name, a.dtype, a.shape) for a in found.args[:4]] == [
        ("master", "float32", (16,)),
        ("exp_avg", "float32", (16,)),
        ("exp_avg_sq", "float32", (16,)),
        ("grad", "bfloat16", (16,)),
    ]
    assert [(a.dtype, a.shape) for a in found.args[4:]] == [("float32", (1,))] * 9
    assert graph(16, "float32").args[3].dtype == "float32"


def test_the_arguments_are_the_functions() -> None:
    pytest.importorskip("torch")
    import inspect

    from trainer.graphs.adamw import adamw

    assert [a.name for a in graph(1, "bfloat16").args] == list(inspect.signature(adamw).parameters)


@given(st.integers(1, 10**9), st.integers(1, 10**7))
def test_tiles_cover_a_weight_in_the_fewest_calls(elements: int, tile_elements: int) -> None:
    # A billion cut into single elements would be a list of a billion.
    tile_elements = max(tile_elements, elements // 1000)
    cut = tiles(elements, tile_elements)
    assert sum(cut) == elements
    assert 0 < min(cut) <= max(cut) <= tile_elements
    assert len(cut) == math.ceil(elements / tile_elements)
    assert len(set(cut)) <= 2
