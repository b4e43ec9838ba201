"""The graphs of one decoder layer, forward and backward: every layer of a model shares one set. No torch.

`parts` is the one place that says which part of the step is which graph; the catalog lists what it returns and
`trainer.model.layer` loads and calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.architecture.config import ModelConfig
from trainer.catalogs.row_tiles import row_tiles, with_tiles

if TYPE_CHECKING:
    from graphcache.header.table import TensorTable

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
# Attention's core: it sees sequences, where all else sees rows.
CORE = ("scores", "softmax", "attend", "softmax_backward", "attend_backward")


def parts(config: ModelConfig, options: CatalogOptions) -> dict[str, Graph]:
    """Graph by part of the step, in CALLS' order, each with its ways.

    Parts whose function and shapes are the same share one graph.
    """
    whole, tokens = _Layer(config, options).parts(), options.micro_batch * options.sequence
    tiled = {
        tokens // rows: _Layer(config, replace(options, micro_batch=1, sequence=rows)) for rows in row_tiles(tokens)
    }
    each = {options.micro_batch: _Layer(config, replace(options, micro_batch=1))} if options.micro_batch > 1 else {}
    rows_of = {calls: layer.parts() for calls, layer in tiled.items()}
    sequences_of = {calls: layer.parts() for calls, layer in each.items()}
    found = with_tiles({part: graph_ for part, graph_ in whole.items() if part not in CORE}, rows_of)
    found |= with_tiles({part: whole[part] for part in CORE}, sequences_of)
    return {part: found[part] for part in CALLS if part in found}


class _Layer:
    """Graphs of a layer of these sizes. T: tokens of a micro-batch."""

    def __init__(self, config: ModelConfig, options: CatalogOptions) -> None:
        self.config = config
        self.options = options
        self.tokens = options.micro_batch * options.sequence

    def tensor(self, name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, self.options.dtype, shape)

    def wide(self, name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, FLOAT, shape)

    def parts(self) -> dict[str, Graph]:
        return self.norms() | self.attention() | self.mlp()

    def norms(self) -> dict[str, Graph]:
        hidden, eps = self.config.hidden, {"eps": self.config.eps}
        x, norm, total = self.tensor("x", self.tokens, hidden), self.tensor("norm", hidden), self.wide("total", hidden)
        return {
            "norm": graph("rms_norm", x, norm, sizes=x.shape, constants=eps, settings=ROWWISE),
            "norm_backward": graph(
                "norm_backward", *(total, x, x, norm, x), sizes=x.shape, constants=eps, settings=ROWWISE
            ),
        }

    def attention(self) -> dict[str, Graph]:
        """Products of q|k|v and out, and what is between them: a row a token becomes a row a head, and back."""
        config, hidden = self.config, self.config.hidden
        width = config.q_width + 2 * config.kv_width
        bias = self.tensor("bias", width)
        found = {
            "qkv": self.linear(width, hidden, *([bias] if config.qkv_bias else ())),
            **self.backward("qkv", width, hidden),
            **self.heads(),
            **self.probabilities(),
            "out": self.linear_residual(config.q_width),
            **self.backward("out", hidden, config.q_width),
        }
        if config.qkv_bias:
            args = self.wide("total", width), self.tensor("dy", self.tokens, width)
            found["qkv_bias_grad"] = graph("bias_grad", *args, sizes=args[1].shape, settings=ROWWISE)
        return found

    def heads(self) -> dict[str, Graph]:
        config, tokens = self.config, self.tokens
        rows, dim = tokens * (config.heads + 2 * config.kv_heads), config.head_dim
        angles = self.wide("cos", rows, dim), self.wide("sin", rows, dim)
        widths = {"q_width": config.q_width, "kv_width": config.kv_width}
        heads, x = (tokens, config.heads + 2 * config.kv_heads, dim), self.tensor("x", rows, dim)
        qkv = self.tensor("q", tokens, config.q_width), *(self.tensor(name, tokens, config.kv_width) for name in "kv")
        return {
            "split": graph("split_heads", replace(x, name="rows"), sizes=heads, constants=widths, settings=ROWWISE),
            "rotate": graph("rotate", x, *angles, sizes=heads, settings=ROTATION),
            "join": graph("join_heads", *qkv, sizes=heads, settings=ROWWISE),
        }

    def probabilities(self) -> dict[str, Graph]:
        """Heads that share keys are one group, row under row."""
        config, sequence, dim = self.config, self.options.sequence, self.config.head_dim
        heads = {"heads": config.heads, "kv_heads": config.kv_heads, "sequence": sequence}
        group = config.heads // config.kv_heads * sequence
        q = self.tensor("q", self.tokens * config.heads, dim)
        k, v = (self.tensor(name, self.tokens * config.kv_heads, dim) for name in "kv")
        scores = self.tensor("scores", self.options.micro_batch * config.kv_heads, group, sequence)
        probabilities, dprobabilities = replace(scores, name="probabilities"), replace(scores, name="dprobabilities")
        weights, rows = replace(scores, name="weights"), replace(q, name="rows")
        mask = self.wide("mask", group, sequence)
        sizes = self.options.micro_batch, sequence, config.heads, config.kv_heads, dim
        return {
            "scores": graph("scores", q, k, sizes=sizes, constants=heads),
            "softmax": graph("softmax", scores, mask, sizes=scores.shape, settings=ROWWISE),
            "attend": graph("attend", probabilities, v, sizes=sizes, constants=heads),
            "softmax_backward": graph(
                "softmax_backward", dprobabilities, probabilities, sizes=scores.shape, settings=ROWWISE
            ),
            "attend_backward": graph("attend_backward", weights, rows, sizes=sizes, constants=heads),
        }

    def mlp(self) -> dict[str, Graph]:
        hidden, mlp = self.config.hidden, self.config.intermediate
        gate_up, product = self.tensor("gate_up", self.tokens, 2 * mlp), self.tensor("dproduct", self.tokens, mlp)
        return {
            "gate_up": self.linear(2 * mlp, hidden),
            **self.backward("gate_up", 2 * mlp, hidden),
            "swiglu": graph("swiglu", gate_up, sizes=product.shape, settings=ROWWISE),
            "swiglu_backward": graph("swiglu_backward", product, gate_up, sizes=product.shape, settings=ROWWISE),
            "down": self.linear_residual(mlp),
            **self.backward("down", hidden, mlp),
        }

    def linear(self, out: int, inner: int, *bias: TensorSpec) -> Graph:
        """x [T, inner] @ weight [out, inner] transposed"""
        args = self.tensor("x", self.tokens, inner), self.tensor("weight", out, inner), *bias
        return graph("linear", *args, sizes=(self.tokens, out, inner), label="linear_bias" if bias else "linear")

    def linear_residual(self, inner: int) -> Graph:
        """The same to [T, hidden], and the residual added."""
        out = self.config.hidden
        args = self.tensor("x", self.tokens, inner), self.tensor("weight", out, inner)
        residual = self.tensor("residual", self.tokens, out)
        return graph("linear_residual", *args, residual, sizes=(self.tokens, out, inner))

    def backward(self, weight: str, out: int, inner: int) -> dict[str, Graph]:
        """Gradients of the product with a weight [out, inner]: of its input, of the weight, and the sum of those."""
        dy, x = self.tensor("dy", self.tokens, out), self.tensor("x", self.tokens, inner)
        total, grad = self.wide("total", out, inner), self.wide("grad", out, inner)
        matrix, sizes = self.tensor("weight", out, inner), (self.tokens, out, inner)
        return {
            f"{weight}_input_grad": graph("input_grad", dy, matrix, sizes=sizes),
            f"{weight}_grad": graph("weight_grad", dy, x, sizes=sizes),
            f"{weight}_add": graph("add", total, grad, sizes=total.shape, settings=ROWWISE),
        }


def graph(
    function: str,
    *args: TensorSpec,
    sizes: Iterable[int],
    constants: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    label: str = "",
) -> Graph:
    """A graph of trainer.graphs.layer, a product unless it has settings.

    Its name ends in `sizes`, those that tell it from the same function's in another model or for another sequence;
    `label` stands where the function is no name.
    """
    settings = products(*args) if settings is None else settings
    name = f"layer.{label or function}[{sizes_text(sizes)}]"
    return Graph(name, "layer", f"{MODULE}:{function}", args, constants=constants or {}, settings=settings)


def sizes_text(sizes: Iterable[int]) -> str:
    """`512x3072x576`"""
    return "x".join(map(str, sizes))


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
