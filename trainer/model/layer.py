"""One decoder layer on a device: which graph is called with what, and when each temporary is freed.

The arithmetic is in `trainer.graphs.layer`, the graphs in `trainer.catalogs.layer`. A runner serves every layer of a
model on one backend: they share graphs, rotary tables and the zeros that a step's first vector gradients are added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, DeviceBackend
from trainer.catalogs.layer import parts
from trainer.model.config import ModelConfig
from trainer.model.graph_set import GraphSet
from trainer.model.parameters import (
    DOWN,
    GATE_UP,
    INPUT_NORM,
    OUT,
    POST_NORM,
    QKV,
    QKV_BIAS,
    Weight,
    device_weights,
    parameter_shapes,
)
from trainer.model.rope import causal_mask, rotate_tables

Weights = Mapping[str, Buffer]


@dataclass(frozen=True)
class Tables:
    """Constants of a sequence length on one device: `rotate`'s cos and sin, the sines negated, the causal mask."""

    cos: Buffer
    sin: Buffer
    sin_back: Buffer
    mask: Buffer


@dataclass(frozen=True)
class Attention:
    """What forward computes and backward computes again: T tokens, n heads in k groups of width d.

    normed:        [T, H]
    q, k, v:       [T*n, d], [T*k, d], [T*k, d]; q and k rotated
    probabilities: [B*k, g*S, S]
    attended:      [T, n*d]
    """

    normed: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    probabilities: Buffer
    attended: Buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self.normed, self.q, self.k, self.v, self.probabilities, self.attended


class LayerRunner:
    """Runs layers on `backend`; `options` say sequence, micro-batch and dtype policy, as in the catalog."""

    def __init__(self, backend: DeviceBackend, config: ModelConfig, options: CatalogOptions) -> None:
        self.backend = backend
        self.config = config
        self.options = options
        self.shapes = parameter_shapes(config)
        self.weights: tuple[Weight, ...] = device_weights(self.shapes)
        self._weight_shapes = {weight.name: weight.shape for weight in self.weights}
        self._heads_shape = options.micro_batch * options.sequence, config.q_width + 2 * config.kv_width
        self._graphs = GraphSet(backend, parts(config, options))

    def load(self) -> None:
        """Load the layer's graphs. Raises MissingGraphsError when the cache lacks one."""
        self._graphs.load()

    def upload_tables(self) -> Tables:
        """The constants of `options.sequence`; also a micro-batch of several sequences has one causal mask."""
        cos, sin = rotate_tables(self.config, self.options.sequence, self.options.micro_batch)
        mask = causal_mask(self.options.sequence, self.config.heads // self.config.kv_heads)
        up = self.backend.upload
        return Tables(
            up(cos, "rotary cosines"),
            up(sin, "rotary sines"),
            up(-sin, "negated rotary sines"),
            up(mask, "causal mask"),
        )

    def forward(self, weights: Weights, x: Buffer, tables: Tables) -> Buffer:
        """The layer's output [T, H] policy from its input [T, H] policy. Frees neither."""
        free, call = self.backend.free, self._graphs.call
        attention, middle = self._attend(weights, x, tables)
        free(*attention.buffers)
        normed, gate_up = self._gate_up(weights, middle)
        (product,) = call("swiglu", gate_up)
        (y,) = call("down", product, weights[DOWN], middle)
        free(normed, gate_up, product, middle)
        return y

    def backward(
        self, weights: Weights, x: Buffer, dy: Buffer, grads: Mapping[str, Buffer | None], tables: Tables
    ) -> tuple[Buffer, dict[str, Buffer]]:
        """Gradient of x [T, H] policy, and the weights' accumulators with this micro-batch added, float32.

        Recomputes the layer from x. `grads` holds the accumulators so far (None or absent: zero) and is used up: read
        what is returned. Frees dy, not x.
        """
        totals = dict(grads)
        attention, middle = self._attend(weights, x, tables)
        dmiddle = self._backward_mlp(weights, middle, dy, totals)
        dx = self._backward_attention(weights, x, dmiddle, totals, tables, attention)
        return dx, {name: buffer for name, buffer in totals.items() if buffer is not None}

    def _attend(self, weights: Weights, x: Buffer, tables: Tables) -> tuple[Attention, Buffer]:
        """Attention's activations, and the residual stream after it [T, H]."""
        free, call = self.backend.free, self._graphs.call
        bias = (weights[QKV_BIAS],) if self.config.qkv_bias else ()
        (normed,) = call("norm", x, weights[INPUT_NORM])
        (heads,) = call("qkv", normed, weights[QKV], *bias)
        rotated = self._rotate(heads, tables.cos, tables.sin)
        q, k, v = (self._rows(part) for part in call("split", rotated))
        (scores,) = call("scores", q, k)
        (probabilities,) = call("softmax", scores, tables.mask)
        free(rotated, scores)
        (attended,) = call("attend", probabilities, v)
        (middle,) = call("out", attended, weights[OUT], x)
        return Attention(normed, q, k, v, probabilities, attended), middle

    def _rotate(self, heads: Buffer, cos: Buffer, sin: Buffer) -> Buffer:
        """[T, h*d] rotated, as [T*h, d]. Takes it."""
        rows = self._rows(heads)
        (rotated,) = self._graphs.call("rotate", rows, cos, sin)
        self.backend.free(rows)
        return rotated

    def _rows(self, heads: Buffer) -> Buffer:
        """[T, h*d] as [T*h, d], without a copy. Takes it."""
        return self._graphs.view(heads, heads.spec.elements // self.config.head_dim, self.config.head_dim)

    def _gate_up(self, weights: Weights, middle: Buffer) -> tuple[Buffer, Buffer]:
        """middle normed [T, H]; its gate and up [T, 2*I]."""
        (normed,) = self._graphs.call("norm", middle, weights[POST_NORM])
        (gate_up,) = self._graphs.call("gate_up", normed, weights[GATE_UP])
        return normed, gate_up

    def _backward_mlp(self, weights: Weights, middle: Buffer, dy: Buffer, totals: dict[str, Buffer | None]) -> Buffer:
        """Gradient of `middle`, the MLP's input. Frees middle and dy."""
        free, call = self.backend.free, self._graphs.call
        normed, gate_up = self._gate_up(weights, middle)
        (dproduct,) = call("down_input_grad", dy, weights[DOWN])
        dgate_up, product = call("swiglu_backward", dproduct, gate_up)
        free(dproduct, gate_up)
        self._accumulate("down", totals, DOWN, dy, product)
        free(product)
        (dnormed,) = call("gate_up_input_grad", dgate_up, weights[GATE_UP])
        self._accumulate("gate_up", totals, GATE_UP, dgate_up, normed)
        free(dgate_up, normed)
        dmiddle = self._backward_norm(totals, POST_NORM, dnormed, middle, weights, dy)
        free(dnormed, middle, dy)
        return dmiddle

    def _backward_attention(
        self,
        weights: Weights,
        x: Buffer,
        dmiddle: Buffer,
        totals: dict[str, Buffer | None],
        tables: Tables,
        forward: Attention,
    ) -> Buffer:
        """Gradient of x. Frees dmiddle and what was recomputed."""
        free, call = self.backend.free, self._graphs.call
        self._accumulate("out", totals, OUT, dmiddle, forward.attended)
        (dattended,) = call("out_input_grad", dmiddle, weights[OUT])
        rows = self._rotate(self._backward_core(dattended, forward), tables.cos, tables.sin_back)
        dheads = self._graphs.view(rows, *self._heads_shape)
        (dnormed,) = call("qkv_input_grad", dheads, weights[QKV])
        self._accumulate("qkv", totals, QKV, dheads, forward.normed)
        if self.config.qkv_bias:
            self._accumulate_bias(totals, dheads)
        free(dheads, forward.normed)
        dx = self._backward_norm(totals, INPUT_NORM, dnormed, x, weights, dmiddle)
        free(dnormed, dmiddle)
        return dx

    def _backward_core(self, dattended: Buffer, forward: Attention) -> Buffer:
        """Gradient of the rotated heads [T, h*d] from that of `attended`. Frees all of `forward` but normed."""
        free, call = self.backend.free, self._graphs.call
        dout = self._rows(dattended)
        (dprobabilities,) = call("scores", dout, forward.v)
        (dscores,) = call("softmax_backward", dprobabilities, forward.probabilities)
        free(dprobabilities, forward.v, forward.attended)
        (dv,) = call("attend_backward", forward.probabilities, dout)
        free(forward.probabilities, dout)
        (dq,) = call("attend", dscores, forward.k)
        (dk,) = call("attend_backward", dscores, forward.q)
        free(dscores, forward.q, forward.k)
        (dheads,) = call("join", dq, dk, dv)
        free(dq, dk, dv)
        return dheads

    def _accumulate(self, part: str, totals: dict[str, Buffer | None], name: str, dy: Buffer, x: Buffer) -> None:
        totals[name] = self._graphs.weight_grad(part, totals.get(name), dy, x)

    def _accumulate_bias(self, totals: dict[str, Buffer | None], dheads: Buffer) -> None:
        old = totals.get(QKV_BIAS)
        start = old or self._graphs.zeros(self._weight_shapes[QKV_BIAS])
        (totals[QKV_BIAS],) = self._graphs.call("qkv_bias_grad", start, dheads)
        if old is not None:
            self.backend.free(old)

    def _backward_norm(
        self,
        totals: dict[str, Buffer | None],
        name: str,
        dnormed: Buffer,
        x: Buffer,
        weights: Weights,
        residual: Buffer,
    ) -> Buffer:
        """Gradient of the norm's input with the residual's added. Frees nothing but the old accumulator."""
        old = totals.get(name)
        start = old or self._graphs.zeros(self._weight_shapes[name])
        dx, totals[name] = self._graphs.call("norm_backward", start, dnormed, x, weights[name], residual)
        if old is not None:
            self.backend.free(old)
        return dx
