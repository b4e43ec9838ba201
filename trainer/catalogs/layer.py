"""The graphs of one decoder layer, forward and backward: every layer of a model shares one set. No torch.

`parts` is the one place that says which part of the step is which graph; the catalog lists what it returns and
`trainer.model.layer` loads and calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.model.config import ModelConfig

if TYPE_CHECKING:
    from graphcache.shapes import TensorTable

MODULE = "trainer.graphs.layer"
FLOAT = "float32"
# Compiler settings by measurement (docs/compiler-workarounds.md). Products compile four to nine times sooner with the
# hint for compute-bound graphs, and twice as soon again when fewer layouts are tried; norms only with the default hint.
PRODUCTS = {"tactic": "compute-bound", "unique-shapes": "4"}
# Elements of a product's smallest matrix: below, as in tests, that hint leaves the compiler no way at all.
SMALL = 4_096
# The compiler would multiply in bfloat16: errors of 2.4e-3 where 1.5e-7 is possible (docs/results/graphs.md).
IN_FLOAT32 = {"implicit-casts": "off"}
ROTATION = {"tactic": "compute-bound"}
ROWWISE: Mapping[str, str] = {}

# Parts of the step, in the order of their first call, and how often a micro-batch calls each in one layer. The first
# micro-batch of a step adds to nothing.
CALLS = {
    "norm": 4,
    "qkv": 2,
    "rotate": 3,
    "split": 2,
    "scores": 3,
    "softmax": 2,
    "attend": 3,
    "out": 2,
    "gate_up": 2,
    "swiglu": 1,
    "down": 1,
    "down_input_grad": 1,
    "swiglu_backward": 1,
    "down_grad": 1,
    "down_add": 1,
    "gate_up_input_grad": 1,
    "gate_up_grad": 1,
    "gate_up_add": 1,
    "norm_backward": 2,
    "out_input_grad": 1,
    "out_grad": 1,
    "out_add": 1,
    "softmax_backward": 1,
    "attend_backward": 2,
    "join": 1,
    "qkv_input_grad": 1,
    "qkv_grad": 1,
    "qkv_add": 1,
    "qkv_bias_grad": 1,
}


def parts(config: ModelConfig, options: CatalogOptions) -> dict[str, Graph]:
    """Graph by part of the step. Parts whose function and shapes are the same share one graph."""
    tokens, sequence = options.micro_batch * options.sequence, options.sequence
    hidden, mlp, dim, kv_heads = config.hidden, config.intermediate, config.head_dim, config.kv_heads
    q_width, kv_width = config.q_width, config.kv_width
    all_heads, all_width = config.heads + 2 * kv_heads, q_width + 2 * kv_width
    group = config.heads // kv_heads * sequence
    eps: dict[str, Any] = {"eps": config.eps}
    heads: dict[str, Any] = {"heads": config.heads, "kv_heads": kv_heads, "sequence": sequence}
    widths: dict[str, Any] = {"q_width": q_width, "kv_width": kv_width}

    def policy(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, options.dtype, shape)

    def wide(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, FLOAT, shape)

    def linear(out: int, inner: int, *bias: TensorSpec) -> Graph:
        args = policy("x", tokens, inner), policy("weight", out, inner), *bias
        return graph("linear", *args, label=f"linear{'_bias' if bias else ''}[{out}x{inner}]")

    def linear_residual(inner: int) -> Graph:
        args = policy("x", tokens, inner), policy("weight", hidden, inner), policy("residual", tokens, hidden)
        return graph("linear_residual", *args, label=f"linear_residual[{hidden}x{inner}]")

    def input_grad(out: int, inner: int) -> Graph:
        args = policy("dy", tokens, out), policy("weight", out, inner)
        return graph("input_grad", *args, label=f"input_grad[{out}x{inner}]")

    def weight_grad(out: int, inner: int) -> Graph:
        args = policy("dy", tokens, out), policy("x", tokens, inner)
        return graph("weight_grad", *args, label=f"weight_grad[{out}x{inner}]")

    def add(out: int, inner: int) -> Graph:
        args = wide("total", out, inner), wide("grad", out, inner)
        return graph("add", *args, label=f"add[{out}x{inner}]", settings=ROWWISE)

    x, norm = policy("x", tokens, hidden), policy("norm", hidden)
    q, k, v = policy("q", tokens * config.heads, dim), *(policy(n, tokens * kv_heads, dim) for n in "kv")
    all_rows = tokens * all_heads
    scores = policy("scores", options.micro_batch * kv_heads, group, sequence)
    probabilities = replace(scores, name="probabilities")
    gate_up, product = policy("gate_up", tokens, 2 * mlp), policy("dproduct", tokens, mlp)
    found = {
        "norm": graph("rms_norm", x, norm, constants=eps, settings=ROWWISE),
        "qkv": linear(all_width, hidden, *([policy("bias", all_width)] if config.qkv_bias else ())),
        "rotate": graph(
            "rotate",
            *(policy("x", all_rows, dim), wide("cos", all_rows, dim), wide("sin", all_rows, dim)),
            settings=ROTATION,
        ),
        "split": graph("split_heads", policy("rows", all_rows, dim), constants=widths, settings=ROWWISE),
        "scores": graph("scores", q, k, constants=heads),
        "softmax": graph("softmax", scores, wide("mask", group, sequence), settings=ROWWISE),
        "attend": graph("attend", probabilities, v, constants=heads),
        "out": linear_residual(q_width),
        "gate_up": linear(2 * mlp, hidden),
        "swiglu": graph("swiglu", gate_up, settings=ROWWISE),
        "down": linear_residual(mlp),
        "down_input_grad": input_grad(hidden, mlp),
        "swiglu_backward": graph("swiglu_backward", product, gate_up, settings=ROWWISE),
        "down_grad": weight_grad(hidden, mlp),
        "down_add": add(hidden, mlp),
        "gate_up_input_grad": input_grad(2 * mlp, hidden),
        "gate_up_grad": weight_grad(2 * mlp, hidden),
        "gate_up_add": add(2 * mlp, hidden),
        "norm_backward": graph("norm_backward", wide("total", hidden), x, x, norm, x, constants=eps, settings=ROWWISE),
        "out_input_grad": input_grad(hidden, q_width),
        "out_grad": weight_grad(hidden, q_width),
        "out_add": add(hidden, q_width),
        "softmax_backward": graph(
            "softmax_backward", replace(scores, name="dprobabilities"), probabilities, settings=ROWWISE
        ),
        "attend_backward": graph(
            "attend_backward", replace(scores, name="weights"), replace(q, name="rows"), constants=heads
        ),
        "join": graph(
            "join_heads",
            *(policy("q", tokens, q_width), policy("k", tokens, kv_width), policy("v", tokens, kv_width)),
            settings=ROWWISE,
        ),
        "qkv_input_grad": input_grad(all_width, hidden),
        "qkv_grad": weight_grad(all_width, hidden),
        "qkv_add": add(all_width, hidden),
    }
    if config.qkv_bias:
        args = wide("total", all_width), policy("dy", tokens, all_width)
        found["qkv_bias_grad"] = graph("bias_grad", *args, settings=ROWWISE)
    return found


def graph(
    function: str,
    *args: TensorSpec,
    constants: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    label: str = "",
) -> Graph:
    """A graph of trainer.graphs.layer, a product unless it has settings; `label` where the function is no name."""
    settings = products(*args) if settings is None else settings
    return Graph(f"layer.{label or function}", "layer", f"{MODULE}:{function}", args, constants or {}, settings)


def products(*args: TensorSpec) -> Mapping[str, str]:
    """The settings of a graph that multiplies matrices of these shapes and dtypes."""
    smallest = min(spec.elements for spec in args if len(spec.shape) > 1)
    casts = {} if any(spec.dtype != FLOAT for spec in args) else IN_FLOAT32
    return casts if smallest < SMALL else PRODUCTS | casts


def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """Entry point `layer`: the parts of a Llama or Qwen2 layer, shared by all layers.

    Raises UsageError without a config.json, and the errors of `ModelConfig.from_json`.
    """
    if config is None:
        raise UsageError(
            "the layer's graphs need the model's config.json: a tensor table does not say heads, eps and rope",
            hint="pass the model's folder, or --only adamw",
        )
    model = ModelConfig.from_json(config)
    found = parts(model, options)
    calls: dict[str, int] = {}
    for part, graph_ in found.items():
        calls[graph_.name] = calls.get(graph_.name, 0) + CALLS[part]
    uses = tuple(Use(name, "layer", model.layers, count) for name, count in calls.items())
    return Listing(tuple({g.name: g for g in found.values()}.values()), uses)
