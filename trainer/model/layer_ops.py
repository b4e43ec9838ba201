"""One decoder layer, forward and backward: which graph is called with what, and when each buffer is freed. No torch.

The arithmetic is in `trainer.graphs.layer`, the graphs in `trainer.catalogs.layer`. T tokens of a micro-batch of B
sequences of S, hidden H, n query heads in k groups of g and width d, h = n + 2k heads in all, MLP width I.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphcache.catalog import CatalogOptions
from graphcache.graph import TensorSpec
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import (
    DOWN,
    GATE_UP,
    INPUT_NORM,
    OUT,
    POST_NORM,
    QKV,
    QKV_BIAS,
    device_weights,
    parameter_shapes,
)
from trainer.model.ops import Call, Free, Op, View

# Names of buffers that outlive a pass.
INPUT, OUTPUT, OUTPUT_GRAD, INPUT_GRAD = "x", "y", "dy", "dx"
COS, SIN, SIN_BACK, MASK = "cos", "sin", "sin_back", "mask"


def grad(weight: str) -> str:
    """The name of a weight's accumulator."""
    return f"grad {weight}"


def zeros(shape: tuple[int, ...]) -> str:
    """The name of the zeros that a vector's first accumulator is added to."""
    return f"zeros {'x'.join(map(str, shape))}"


class LayerOps:
    """The passes through a layer of a model. Weights have their own names as buffers."""

    def __init__(self, config: ModelConfig, options: CatalogOptions) -> None:
        self._config = config
        self._dtype = options.dtype
        self._tokens = options.micro_batch * options.sequence
        self._shapes = {w.name: w.shape for w in device_weights(parameter_shapes(config))}
        group = config.heads // config.kv_heads * options.sequence
        self._scores = options.micro_batch * config.kv_heads, group, options.sequence

    def forward(self) -> tuple[Op, ...]:
        """`y` [T, H] from `x` [T, H]; frees neither."""
        return tuple(self._forward())

    def backward(self, *, first: bool) -> tuple[Op, ...]:
        """`dx` [T, H] from `x` and `dy` [T, H], and this micro-batch's gradients added to the accumulators.

        Recomputes the layer from x. Frees dy, not x. `first`: of the step's micro-batches, so there is no accumulator
        yet.
        """
        return tuple(self._backward(first))

    def _tensor(self, name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, self._dtype, shape)

    def _rows(self, name: str, heads: int) -> TensorSpec:
        return self._tensor(name, self._tokens * heads, self._config.head_dim)

    def _hidden(self, name: str) -> TensorSpec:
        return self._tensor(name, self._tokens, self._config.hidden)

    def _mlp(self, name: str, times: int = 1) -> TensorSpec:
        return self._tensor(name, self._tokens, times * self._config.intermediate)

    def _forward(self) -> Iterator[Op]:
        yield from self._attend()
        yield Free(("normed", "q", "k", "v", "probabilities", "attended"))
        yield from self._gate_up()
        yield Call("swiglu", ("gate_up",), (self._mlp("product"),))
        yield Call(
            "down",
            ("product", DOWN, "middle"),
            (self._hidden(OUTPUT),),
            frees=("mlp_normed", "gate_up", "product", "middle"),
        )

    def _attend(self) -> Iterator[Op]:
        """Attention's activations, and `middle`: the residual stream after it."""
        config = self._config
        width, heads = config.q_width + 2 * config.kv_width, config.heads + 2 * config.kv_heads
        bias = (QKV_BIAS,) if config.qkv_bias else ()
        yield Call("norm", (INPUT, INPUT_NORM), (self._hidden("normed"),))
        yield Call("qkv", ("normed", QKV, *bias), (self._tensor("heads", self._tokens, width),))
        yield View("heads", (self._rows("rows", heads),))
        yield Call("rotate", ("rows", COS, SIN), (self._rows("rotated", heads),), frees=("rows",))
        widths = {"q": config.q_width, "k": config.kv_width, "v": config.kv_width}
        yield Call("split", ("rotated",), tuple(self._tensor(f"{n} wide", self._tokens, w) for n, w in widths.items()))
        for name, width_ in widths.items():
            yield View(f"{name} wide", (self._rows(name, width_ // config.head_dim),))
        yield Call("scores", ("q", "k"), (self._tensor("scores", *self._scores),))
        yield Call(
            "softmax", ("scores", MASK), (self._tensor("probabilities", *self._scores),), frees=("rotated", "scores")
        )
        yield Call("attend", ("probabilities", "v"), (self._tensor("attended", self._tokens, config.q_width),))
        yield Call("out", ("attended", OUT, INPUT), (self._hidden("middle"),))

    def _gate_up(self) -> Iterator[Op]:
        yield Call("norm", ("middle", POST_NORM), (self._hidden("mlp_normed"),))
        yield Call("gate_up", ("mlp_normed", GATE_UP), (self._mlp("gate_up", 2),))

    def _backward(self, first: bool) -> Iterator[Op]:
        yield from self._attend()
        yield from self._backward_mlp(first)
        yield from self._backward_attention(first)

    def _backward_mlp(self, first: bool) -> Iterator[Op]:
        """`dmiddle`: the gradient of the MLP's input."""
        yield from self._gate_up()
        yield Call("down_input_grad", (OUTPUT_GRAD, DOWN), (self._mlp("dproduct"),))
        yield Call(
            "swiglu_backward",
            ("dproduct", "gate_up"),
            (self._mlp("dgate_up", 2), self._mlp("product")),
            frees=("dproduct", "gate_up"),
        )
        yield from self._accumulate("down", DOWN, OUTPUT_GRAD, "product", first)
        yield Free(("product",))
        yield Call("gate_up_input_grad", ("dgate_up", GATE_UP), (self._hidden("dnormed"),))
        yield from self._accumulate("gate_up", GATE_UP, "dgate_up", "mlp_normed", first)
        yield Free(("dgate_up", "mlp_normed"))
        yield self._norm_backward("dmiddle", POST_NORM, "middle", OUTPUT_GRAD, first)
        yield Free(("dnormed", "middle", OUTPUT_GRAD))

    def _backward_attention(self, first: bool) -> Iterator[Op]:
        config = self._config
        heads = config.heads + 2 * config.kv_heads
        yield from self._accumulate("out", OUT, "dmiddle", "attended", first)
        yield Call("out_input_grad", ("dmiddle", OUT), (self._tensor("dattended", self._tokens, config.q_width),))
        yield from self._backward_core()
        yield View("dheads", (self._rows("drows", heads),))
        yield Call("rotate", ("drows", COS, SIN_BACK), (self._rows("dturned", heads),), frees=("drows",))
        yield View("dturned", (self._tensor("dheads", self._tokens, heads * config.head_dim),))
        yield Call("qkv_input_grad", ("dheads", QKV), (self._hidden("dnormed"),))
        yield from self._accumulate("qkv", QKV, "dheads", "normed", first)
        if config.qkv_bias:
            total, old = self._total(QKV_BIAS, first)
            yield Call("qkv_bias_grad", (total, "dheads"), (self._gradient(QKV_BIAS),), frees=old)
        yield Free(("dheads", "normed"))
        yield self._norm_backward(INPUT_GRAD, INPUT_NORM, INPUT, "dmiddle", first)
        yield Free(("dnormed", "dmiddle"))

    def _backward_core(self) -> Iterator[Op]:
        """`dheads`: the gradient of the rotated heads from that of `attended`."""
        config = self._config
        kv = self._tensor("", self._tokens, config.kv_width).shape
        yield View("dattended", (self._rows("dout", config.heads),))
        yield Call("scores", ("dout", "v"), (self._tensor("dprobabilities", *self._scores),))
        yield Call(
            "softmax_backward",
            ("dprobabilities", "probabilities"),
            (self._tensor("dscores", *self._scores),),
            frees=("dprobabilities", "v", "attended"),
        )
        yield Call(
            "attend_backward", ("probabilities", "dout"), (self._tensor("dv", *kv),), frees=("probabilities", "dout")
        )
        yield Call("attend", ("dscores", "k"), (self._tensor("dq", self._tokens, config.q_width),))
        yield Call("attend_backward", ("dscores", "q"), (self._tensor("dk", *kv),), frees=("dscores", "q", "k"))
        width = config.q_width + 2 * config.kv_width
        yield Call(
            "join",
            ("dq", "dk", "dv"),
            (self._tensor("dheads", self._tokens, width),),
            frees=("dq", "dk", "dv"),
        )

    def _gradient(self, weight: str) -> TensorSpec:
        return TensorSpec(grad(weight), "float32", self._shapes[weight])

    def _total(self, weight: str, first: bool) -> tuple[str, tuple[str, ...]]:
        """What a vector's gradient is added to, and of that what is freed then."""
        return (zeros(self._shapes[weight]), ()) if first else (grad(weight), (grad(weight),))

    def _accumulate(self, part: str, weight: str, dy: str, x: str, first: bool) -> Iterator[Op]:
        yield from accumulate(part, self._gradient(weight), dy, x, first)

    def _norm_backward(self, result: str, weight: str, x: str, residual: str, first: bool) -> Op:
        """The gradient of a norm's input, with the residual's added."""
        total, old = self._total(weight, first)
        args = total, "dnormed", x, weight, residual
        return Call("norm_backward", args, (self._hidden(result), self._gradient(weight)), frees=old)


def accumulate(part: str, gradient: TensorSpec, dy: str, x: str, first: bool) -> Iterator[Op]:
    """A matrix's gradient, made or added to what there is; it takes no more than two beside it for a moment."""
    if first:
        yield Call(f"{part}_grad", (dy, x), (gradient,))
        return
    new = TensorSpec("new grad", gradient.dtype, gradient.shape)
    yield Call(f"{part}_grad", (dy, x), (new,))
    yield Call(f"{part}_add", (gradient.name, new.name), (gradient,), frees=(gradient.name, new.name))
