"""The proof tells: each graph of each catalog passes as torch runs it, and fails with faults that a compiler may make.

A fault is a function that computes something else, run in the graph's own dtypes: torch then stands for a compiled
program. `tests/compiler/test_proof.py` has compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, TensorSpec
from graphcache.proof.check import SEED, Found, Judge, prove, reference
from graphcache.proof.inputs import example
from trainer.architecture.config import ModelConfig
from trainer.catalogs import adamw, head, layer

Results = Sequence[Tensor]
Run = Callable[[Results], Results]

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
MODELS = {"llama": SIZES | {"model_type": "llama"}, "qwen2": SIZES | {"model_type": "qwen2"}}


def graphs() -> dict[str, Graph]:
    """Each function of each catalog, in both dtypes; of Qwen2 what has a bias."""
    found: dict[str, Graph] = {}
    for dtype in ("bfloat16", "float32"):
        options = CatalogOptions(sequence=32, micro_batch=2, dtype=dtype)
        llama, qwen2 = (
            layer.parts(parsed, options) | head.parts(parsed, options)
            for parsed in (ModelConfig.from_json(config) for config in MODELS.values())
        )
        whole = llama["chunk_forward"]
        bias = TensorSpec("bias", dtype, whole.args[1].shape[:1])
        total = TensorSpec("total", "float32", (500,))
        pieces = tuple(TensorSpec(f"tile{i}", dtype, (200,)) for i in range(3))
        listed = {
            **{graph.name: graph for graph in llama.values()},
            "qkv with bias": qwen2["qkv"],
            "qkv_bias_grad": qwen2["qkv_bias_grad"],
            "chunk_forward with bias": replace(whole, args=(*whole.args, bias)),
            "adamw": adamw.graph(4096, dtype),
            "cast": Graph("cast", "tiles", "trainer.graphs.tiles:cast", (total,), constants={"dtype": dtype}),
            "tiles": Graph("tiles", "tiles", "trainer.graphs.tiles:join", pieces, constants={"shape": [30, 20]}),
        }
        found |= {f"{dtype}-{name}": graph for name, graph in listed.items()}
    return found


GRAPHS = graphs()


def of(function: str) -> Graph:
    return next(graph for graph in GRAPHS.values() if graph.function.endswith(":" + function))


def eager(graph: Graph, inputs: Results, **constants: object) -> list[Tensor]:
    with torch.no_grad():
        found = graph.load_function()(*inputs, **{**graph.constants, **constants})
    return [found] if isinstance(found, Tensor) else list(found)


REFERENCES: dict[tuple[str, int], Any] = {}


def verdict(graph: Graph, run: Run, sets: int = 2) -> Found:
    """As `prove`, with references that are computed once for all faults."""
    judge = Judge()
    for number in range(sets):
        place = repr(graph), number
        if place not in REFERENCES:
            REFERENCES[place] = reference(graph, SEED, number)
        inputs, wanted = REFERENCES[place]
        if not judge.add(number, run(inputs), wanted):
            break
    return judge.found()


@pytest.mark.parametrize("name", GRAPHS)
def test_a_right_graph_is_proven(name: str) -> None:
    graph = GRAPHS[name]
    found = verdict(graph, lambda inputs: eager(graph, inputs))
    assert found.state == "proven", found.reason
    assert all(result.share is not None and result.share <= 1 for result in found.results)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name.startswith("bfloat16")])
def test_more_precision_inside_is_proven_too(name: str) -> None:
    """The compiler may keep float32 where the function rounds to bfloat16."""
    graph = GRAPHS[name]
    wide = Graph(graph.name, graph.catalog, graph.function, graph.args, constants=graph.constants)

    def run(inputs: Results) -> Results:
        dtypes = [result.dtype for result in eager(wide, inputs)]
        with NoRounding():
            found = eager(wide, [t.double() for t in inputs])
        return [result.to(dtype) for result, dtype in zip(found, dtypes, strict=True)]

    found = verdict(graph, run)
    assert found.state == "proven", found.reason


class NoRounding(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        def wide(value):  # type: ignore[no-untyped-def]
            return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

        return func(*map(wide, args), **{key: wide(value) for key, value in (kwargs or {}).items()})


# In bfloat16, where bounds are wide.
ONE_OF_EACH = [name for name in GRAPHS if name.startswith("bfloat16")]


# --- faults of any graph: results that are moved, tiles that are wrong ------------------------------------------------


def _tile(result: Tensor, change: Callable[[Tensor], Tensor], parts: int, place: int) -> Tensor:
    """One of `parts` parts of the last dimension changed."""
    out = result.clone()
    size = max(1, out.shape[-1] // parts)
    start = min(place * size, out.shape[-1] - size)
    out[..., start : start + size] = change(out[..., start : start + size])
    return out


Change = Callable[[Tensor], Tensor]

RESULT_FAULTS: dict[str, Change] = {
    "rows moved by one": lambda r: r.roll(1, 0),
    "columns moved by one": lambda r: r.roll(1, -1),
    "first row repeated": lambda r: torch.cat((r[:1], r[:-1])) if r.dim() > 1 else r.roll(1),
    "last row left out": lambda r: torch.cat((r[:-1], torch.zeros_like(r[-1:]))),
    "sign": lambda r: -r,
    "doubled": lambda r: r * 2,
    "halved": lambda r: r / 2,
    "first of 64 tiles zero": lambda r: _tile(r, torch.zeros_like, 64, 0),
    "last of 64 tiles zero": lambda r: _tile(r, torch.zeros_like, 64, 63),
    "one of 8 tiles doubled": lambda r: _tile(r, lambda t: t * 2, 8, 3),
    "not a number": lambda r: _tile(r, lambda t: t * torch.nan, 64, 5),
}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_wrong_result_fails(name: str) -> None:
    graph = GRAPHS[name]
    right = [eager(graph, example(graph, 0, number)) for number in range(2)]
    for fault, change in RESULT_FAULTS.items():
        for place in range(len(right[0])):
            sets = iter(right)

            def run(inputs: Results, place: int = place, change: Change = change, sets: Any = sets) -> Results:
                return [change(result) if i == place else result for i, result in enumerate(next(sets))]

            assert verdict(graph, run).state == "disproven", (fault, place)


# --- faults of what goes in: an operand's rows, columns, tiles; which operand it is -----------------------------------


def _without(t: Tensor, dim: int, start: int, stop: int) -> Tensor:
    out = t.clone()
    out.narrow(dim, start, stop - start).zero_()
    return out


OPERAND_FAULTS: dict[str, Change] = {
    "first row left out": lambda t: _without(t, 0, 0, 1),
    "last row left out": lambda t: _without(t, 0, t.shape[0] - 1, t.shape[0]),
    "last column left out": lambda t: _without(t, -1, t.shape[-1] - 1, t.shape[-1]),
    "a middle row counted twice": lambda t: torch.cat(
        (t[: len(t) // 2], t[len(t) // 2 :][:1] * 2, t[len(t) // 2 + 1 :])
    ),
    "rows swapped": lambda t: torch.cat((t[1:2], t[0:1], t[2:])),
    "last quarter of columns left out": lambda t: _without(t, -1, t.shape[-1] - t.shape[-1] // 4, t.shape[-1]),
    "first 64th of columns left out": lambda t: _without(t, -1, 0, max(1, t.shape[-1] // 64)),
    "sign of a tile": lambda t: torch.cat((t[: len(t) // 2], -t[len(t) // 2 :])),
}


# What is right: a norm takes a row's scale away, a sum over rows knows no order.
NO_FAULTS = {("rms_norm", "a middle row counted twice"), ("bias_grad", "rows swapped")}


def operands() -> list[tuple[str, int]]:
    """Each matrix that a graph takes, but the mask, of which a row says little that others do not."""
    return [
        (name, place)
        for name, graph in GRAPHS.items()
        if name.startswith("bfloat16") and "-tiles" not in name
        for place, spec in enumerate(graph.args)
        if len(spec.shape) > 1 and spec.name not in ("mask", "sin")
    ]


@pytest.mark.parametrize(("name", "place"), operands())
def test_a_wrong_operand_fails(name: str, place: int) -> None:
    graph = GRAPHS[name]
    for fault, change in OPERAND_FAULTS.items():
        if (graph.function.partition(":")[2], fault) in NO_FAULTS:
            continue

        def run(inputs: Results, change: Change = change) -> Results:
            return eager(graph, [change(t) if i == place else t for i, t in enumerate(inputs)])

        assert verdict(graph, run).state == "disproven", (fault, graph.name)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_swapped_operands_fail(name: str) -> None:
    """Any two of the same dtype and shape, but those that are added, where the order makes no difference."""
    graph = GRAPHS[name]
    sums = {("trainer.graphs.layer:add", 0, 1)}
    specs = [(spec.dtype, spec.shape) for spec in graph.args]
    for i, j in combinations(range(len(specs)), 2):
        if specs[i] != specs[j] or (graph.function, i, j) in sums:
            continue

        def run(inputs: Results, i: int = i, j: int = j) -> Results:
            swapped = list(inputs)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            return eager(graph, swapped)

        assert verdict(graph, run).state == "disproven", (i, j)


# --- faults of one function ------------------------------------------------------------------------------------------


def chunk_forward(fault: str) -> Callable[..., tuple[Tensor, ...]]:
    def wrong(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        logits = hidden @ weight.t()
        logits = logits if bias is None else logits + bias
        wide = logits.float()
        parts = wide.chunk(64, -1)
        largest = wide.amax(-1)
        if fault == "twice the largest":
            largest = largest * 2
        if fault == "sum for maximum":
            largest = torch.stack([part.amax(-1) for part in parts]).sum(0)
        if fault == "a part's maximum left out":
            largest = torch.stack([part.amax(-1) for part in parts[:-1]]).amax(0)
        powers = torch.exp(wide - largest[:, None])
        total = powers.sum(-1)
        if fault == "a part's sum doubled":
            total = total + powers.chunk(64, -1)[7].sum(-1)
        if fault == "a part's sum halved":
            total = total - powers.chunk(64, -1)[63].sum(-1) / 2
        return logits, largest, total

    return wrong


CHUNK_FAULTS = (
    "twice the largest",
    "sum for maximum",
    "a part's maximum left out",
    "a part's sum doubled",
    "a part's sum halved",
)


@pytest.mark.parametrize("fault", CHUNK_FAULTS)
@pytest.mark.parametrize("tokens", [32, 64])
def test_a_wrong_chunk_of_the_head_fails(fault: str, tokens: int) -> None:
    shapes = {"x": (tokens, 64), "w": (4096, 64)}
    args = tuple(TensorSpec(name, "bfloat16", shape) for name, shape in shapes.items())
    graph = Graph("chunk_forward", "head", "trainer.graphs.head:chunk_forward", args)
    assert verdict(graph, lambda inputs: eager(graph, inputs)).state == "proven"
    assert verdict(graph, lambda inputs: chunk_forward(fault)(*inputs)).state == "disproven"


@pytest.mark.parametrize("change", [2.0, 0.5, -1.0])
@pytest.mark.parametrize("name", [name for name, graph in GRAPHS.items() if "eps" in graph.constants])
def test_another_eps_fails(name: str, change: float) -> None:
    graph = GRAPHS[name]
    eps = graph.constants["eps"] * change
    assert verdict(graph, lambda inputs: eager(graph, inputs, eps=eps)).state == "disproven"


def test_another_eps_of_adamw_fails() -> None:
    graph = GRAPHS["bfloat16-adamw"]

    def run(inputs: Results) -> Results:
        changed = list(inputs)
        changed[11] = inputs[11] * 2
        return eager(graph, changed)

    assert verdict(graph, run).state == "disproven"


def test_a_mask_that_is_ignored_fails() -> None:
    graph = of("softmax")
    assert verdict(graph, lambda i: eager(graph, [i[0], torch.zeros_like(i[1])])).state == "disproven"


def norm_backward_of(tokens: int) -> Graph:
    """SmolLM2-135M's, whose elements near zero are thousands of units in the last place off, and right."""
    model = SIZES | {"hidden_size": 576, "model_type": "llama"}
    options = CatalogOptions(sequence=tokens)
    return head.parts(ModelConfig.from_json(model), options)["final_norm_backward"]


@pytest.mark.parametrize("tokens", [64, 256])
def test_results_that_cancel_to_nearly_zero_are_proven(tokens: int) -> None:
    graph = norm_backward_of(tokens)
    assert verdict(graph, lambda inputs: eager(graph, inputs), sets=1).state == "proven"


def rounded_factors(total: Tensor, dnormed: Tensor, x: Tensor, norm: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """norm_backward as the compiler makes it: sums of products with factors that are rounded to bfloat16."""

    def half(tensor: Tensor) -> Tensor:
        return tensor.bfloat16().float()

    wide = x.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    unit, dunit = wide * scale, dnormed * norm.float()
    dx = scale * (dunit - unit * (half(dunit) * half(unit)).mean(-1, keepdim=True))
    return dx.to(x.dtype), total + (half(dnormed) * half(unit)).sum(0)


def test_factors_of_sums_may_be_rounded_unless_the_settings_forbid_it() -> None:
    graph = norm_backward_of(64)
    run = lambda inputs: rounded_factors(*inputs, **graph.constants)  # noqa: E731
    assert verdict(graph, run, sets=1).state == "proven"
    strict = replace(graph, settings={"implicit-casts": "off"})
    assert verdict(strict, run, sets=1).state == "disproven"


def test_an_operator_without_a_bound_is_unproven_and_named() -> None:
    args = (TensorSpec("x", "float32", (8, 8)), TensorSpec("y", "float32", (8, 8)))
    graph = Graph("sorted", "test", "tests.support.programs:sorted_sum", args)
    found = prove(graph, lambda inputs: eager(graph, inputs), sets=2)
    assert found.state == "unproven"
    assert "aten.sort" in found.reason


def test_another_shape_or_dtype_is_disproven() -> None:
    graph = of("rms_norm")
    assert verdict(graph, lambda inputs: [r.t() for r in eager(graph, inputs)]).state == "disproven"
    assert verdict(graph, lambda inputs: [r.float() for r in eager(graph, inputs)]).state == "disproven"
