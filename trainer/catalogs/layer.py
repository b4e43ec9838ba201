"""The graphs of one decoder layer, forward and backward: every layer of a model shares one set. No torch.

`parts` is the one place that says which part of the step is which graph; the catalog lists what it returns and
`trainer.model.layer` loads and calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
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
ROTATION = {"tactic": "compute-bound"}
ROWWISE: Mapping[str, str] = {}

# Parts of the step, in the order of their first call, and how often a micro-batch calls each in one layer. The first
# micro-batch of a step adds to nothing.
CALLS = {
    "norm": 4,
    "qkv": 2,
    "rotate": 3,
    "attention": 2,
    "attention_out": 2,
    "gate_up": 2,
    "swiglu_down": 1,
    "swiglu_down_backward": 1,
    "down_grad": 1,
    "down_add": 1,
    "gate_up_input_grad": 1,
    "gate_grad": 2,
    "gate_add": 2,
    "norm_backward": 2,
    "out_input_grad": 1,
    "out_grad": 1,
    "out_add": 1,
    "attention_backward": 1,
    "qkv_input_grad": 1,
    "q_grad": 1,
    "q_add": 1,
    "kv_grad": 2,
    "kv_add": 2,
    "bias_grads": 1,
}


def parts(config: ModelConfig, options: CatalogOptions) -> dict[str, Graph]:
    """Graph by part of the step. Parts whose function and shapes are the same share one graph."""
    tokens, sequence = options.micro_batch * options.sequence, options.sequence
    hidden, mlp, dim = config.hidden, config.intermediate, config.head_dim
    heads, kv_heads, q_width, kv_width = config.heads, config.kv_heads, config.q_width, config.kv_width
    eps: dict[str, Any] = {"eps": config.eps}
    shared: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads}

    def policy(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, options.dtype, shape)

    def wide(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, FLOAT, shape)

    x, norm = policy("x", tokens, hidden), policy("norm", hidden)
    q, k, v = (policy(n, tokens * h, dim) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
    q_weight = policy("q_weight", q_width, hidden)
    k_weight, v_weight = policy("k_weight", kv_width, hidden), policy("v_weight", kv_width, hidden)
    biases = (policy("q_bias", q_width), policy("k_bias", kv_width), policy("v_bias", kv_width))
    probabilities = policy("probabilities", options.micro_batch * kv_heads, heads // kv_heads * sequence, sequence)
    attended = policy("attended", tokens, q_width)
    out_weight = policy("out_weight", hidden, q_width)
    gate, up = policy("gate", tokens, mlp), policy("up", tokens, mlp)
    gate_weight, up_weight = policy("gate_weight", mlp, hidden), policy("up_weight", mlp, hidden)
    down_weight = policy("down_weight", hidden, mlp)
    tables = tuple(
        wide(n, tokens * h, dim)
        for n, h in (("q_cos", heads), ("q_sin", heads), ("k_cos", kv_heads), ("k_sin", kv_heads))
    )

    def weight_grad(out: int, inner: int) -> Graph:
        return graph(
            "weight_grad", policy("dy", tokens, out), policy("x", tokens, inner), label=f"weight_grad[{out}x{inner}]"
        )

    def add(out: int, inner: int) -> Graph:
        args = wide("total", out, inner), wide("grad", out, inner)
        return graph("add", *args, label=f"add[{out}x{inner}]", settings=ROWWISE)

    found = {
        "norm": graph("rms_norm", x, norm, constants=eps, settings=ROWWISE),
        "qkv": graph(
            "qkv",
            *(x, q_weight, k_weight, v_weight, *(biases if config.qkv_bias else ())),
            constants={"head_dim": dim},
        ),
        "rotate": graph("rotate", q, k, *tables, settings=ROTATION),
        "attention": graph("attention", q, k, v, wide("mask", sequence, sequence), constants=shared),
        "attention_out": graph("linear_residual", attended, out_weight, x),
        "gate_up": graph("gate_up", x, gate_weight, up_weight),
        "swiglu_down": graph("swiglu_down", gate, up, down_weight, x),
        "swiglu_down_backward": graph("swiglu_down_backward", x, gate, up, down_weight),
        "down_grad": weight_grad(hidden, mlp),
        "down_add": add(hidden, mlp),
        "gate_up_input_grad": graph("input_grad_2", gate, gate_weight, up, up_weight),
        "gate_grad": weight_grad(mlp, hidden),
        "gate_add": add(mlp, hidden),
        "norm_backward": graph("norm_backward", wide("total", hidden), x, x, norm, x, constants=eps, settings=ROWWISE),
        "out_input_grad": graph("input_grad", x, out_weight),
        "out_grad": weight_grad(hidden, q_width),
        "out_add": add(hidden, q_width),
        "attention_backward": graph("attention_backward", attended, q, k, v, probabilities, attended, constants=shared),
        "qkv_input_grad": graph("qkv_input_grad", q, k, v, q_weight, k_weight, v_weight),
        "q_grad": weight_grad(q_width, hidden),
        "q_add": add(q_width, hidden),
        "kv_grad": weight_grad(kv_width, hidden),
        "kv_add": add(kv_width, hidden),
    }
    if config.qkv_bias:
        totals = wide("q_total", q_width), wide("k_total", kv_width), wide("v_total", kv_width)
        found["bias_grads"] = graph(
            "bias_grads",
            *totals,
            policy("dq", tokens, q_width),
            policy("dk", tokens, kv_width),
            policy("dv", tokens, kv_width),
        )
    return found


def graph(
    function: str,
    *args: TensorSpec,
    constants: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] = PRODUCTS,
    label: str = "",
) -> Graph:
    """A graph of trainer.graphs.layer; `label` where the function's name alone would not be unique."""
    return Graph(f"layer.{label or function}", "layer", f"{MODULE}:{function}", args, constants or {}, settings)


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
