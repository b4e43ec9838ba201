"""One decoder layer on a device: which graph is called with what, and when each temporary is freed.

The arithmetic is in `trainer.graphs.layer`, the graphs in `trainer.catalogs.layer`. A runner serves every layer of a
model on one backend: they share graphs, rotary tables and the zeros that a step's first vector gradients are added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph
from trainer.catalogs.layer import parts
from trainer.device.base import Buffer, DeviceBackend, LoadedGraph
from trainer.model.config import ModelConfig
from trainer.model.rope import causal_mask, rotate_tables

INPUT_NORM, POST_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
Q, K, V, OUT = (f"self_attn.{name}_proj.weight" for name in "qkvo")
Q_BIAS, K_BIAS, V_BIAS = (f"self_attn.{name}_proj.bias" for name in "qkv")
GATE, UP, DOWN = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))

Weights = Mapping[str, Buffer]


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter of a layer by its short name (after `model.layers.N.`), in the checkpoint's layout."""
    hidden, mlp, q, kv = config.hidden, config.intermediate, config.q_width, config.kv_width
    shapes: dict[str, tuple[int, ...]] = {
        INPUT_NORM: (hidden,),
        Q: (q, hidden),
        K: (kv, hidden),
        V: (kv, hidden),
        OUT: (hidden, q),
        POST_NORM: (hidden,),
        GATE: (mlp, hidden),
        UP: (mlp, hidden),
        DOWN: (hidden, mlp),
    }
    if config.qkv_bias:
        shapes |= {Q_BIAS: (q,), K_BIAS: (kv,), V_BIAS: (kv,)}
    return shapes


class Graphs:
    """The loaded graphs of a runner by part of the step, and the zeros that vectors' accumulators start from.

    Graphs are pure, so the zeros are shared by every layer and kept for the whole run: one buffer a shape.
    """

    def __init__(self, backend: DeviceBackend, found: Mapping[str, Graph]) -> None:
        self.backend = backend
        self._found = found
        self._loaded: dict[str, LoadedGraph] = {}
        self._zeros: dict[tuple[int, ...], Buffer] = {}

    def load(self) -> None:
        """Load every graph once. Raises MissingGraphsError when the cache lacks one."""
        by_name: dict[str, LoadedGraph] = {}
        for part, graph in self._found.items():
            if graph.name not in by_name:
                by_name[graph.name] = self.backend.load(graph)
            self._loaded[part] = by_name[graph.name]

    def call(self, part: str, *args: Buffer) -> tuple[Buffer, ...]:
        return self.backend.call(self._loaded[part], args)

    def zeros(self, shape: tuple[int, ...]) -> Buffer:
        """Zeros [shape] float32, not to be freed by the caller."""
        if shape not in self._zeros:
            self._zeros[shape] = self.backend.upload(torch.zeros(shape), "zeros")
        return self._zeros[shape]

    def weight_grad(self, weight: str, total: Buffer | None, dy: Buffer, x: Buffer) -> Buffer:
        """A weight's gradient added to `total`, which is used up; dy and x are not."""
        (grad,) = self.call(f"{weight}_grad", dy, x)
        if total is None:
            return grad
        (new,) = self.call(f"{weight}_add", total, grad)
        self.backend.free(total, grad)
        return new


@dataclass(frozen=True)
class Tables:
    """Constants of a sequence length on one device: `rotate`'s four tables, the sines negated, the causal mask."""

    forward: tuple[Buffer, Buffer, Buffer, Buffer]
    backward: tuple[Buffer, Buffer, Buffer, Buffer]
    mask: Buffer


class LayerRunner:
    """Runs layers on `backend`; `options` say sequence, micro-batch and dtype policy, as in the catalog."""

    def __init__(self, backend: DeviceBackend, config: ModelConfig, options: CatalogOptions) -> None:
        self.backend = backend
        self.config = config
        self.options = options
        self.shapes = parameter_shapes(config)
        self._graphs = Graphs(backend, parts(config, options))

    def load(self) -> None:
        """Load the layer's graphs. Raises MissingGraphsError when the cache lacks one."""
        self._graphs.load()

    def upload_tables(self) -> Tables:
        """The constants that forward and backward take; once per device."""
        q_cos, q_sin, k_cos, k_sin = rotate_tables(self.config, self.options.sequence, self.options.micro_batch)

        def up(name: str, table: Tensor) -> Buffer:
            return self.backend.upload(table, name)

        q, k = up("q_cos", q_cos), up("k_cos", k_cos)
        return Tables(
            (q, up("q_sin", q_sin), k, up("k_sin", k_sin)),
            (q, up("q_sin negated", -q_sin), k, up("k_sin negated", -k_sin)),
            up("causal mask", causal_mask(self.options.sequence)),
        )

    def upload_weights(self, host: Mapping[str, Tensor]) -> dict[str, Buffer]:
        """A layer's parameters by short name, in the policy's dtype on the host, to the device."""
        return {name: self.backend.upload(host[name], name) for name in self.shapes}

    def forward(self, weights: Weights, x: Buffer, tables: Tables) -> Buffer:
        """The layer's output [T, H] policy from its input [T, H] policy. Frees neither."""
        free, call = self.backend.free, self._graphs.call
        normed, q, k, v, probabilities, attended, middle = self._attend(weights, x, tables)
        free(normed, q, k, v, probabilities, attended)
        (normed,) = call("norm", middle, weights[POST_NORM])
        gate, up = call("gate_up", normed, weights[GATE], weights[UP])
        free(normed)
        (y,) = call("swiglu_down", gate, up, weights[DOWN], middle)
        free(gate, up, middle)
        return y

    def backward(
        self, weights: Weights, x: Buffer, dy: Buffer, grads: Mapping[str, Buffer | None], tables: Tables
    ) -> tuple[Buffer, dict[str, Buffer]]:
        """Gradient of x [T, H] policy, and the parameters' accumulators with this micro-batch added, float32.

        Recomputes the layer from x. `grads` holds the accumulators so far (None or absent: zero) and is used up: read
        what is returned. Frees dy, not x.
        """
        totals = dict(grads)
        normed, q, k, v, probabilities, attended, middle = self._attend(weights, x, tables)
        dmiddle = self._backward_mlp(weights, middle, dy, totals)
        dx = self._backward_attention(weights, x, dmiddle, totals, tables, (normed, q, k, v, probabilities, attended))
        return dx, {name: buffer for name, buffer in totals.items() if buffer is not None}

    def _attend(self, weights: Weights, x: Buffer, tables: Tables) -> tuple[Buffer, ...]:
        """normed, q, k (rotated), v, probabilities, attended, and the residual stream after attention."""
        free, call = self.backend.free, self._graphs.call
        biases = (weights[Q_BIAS], weights[K_BIAS], weights[V_BIAS]) if self.config.qkv_bias else ()
        (normed,) = call("norm", x, weights[INPUT_NORM])
        raw_q, raw_k, v = call("qkv", normed, weights[Q], weights[K], weights[V], *biases)
        q, k = call("rotate", raw_q, raw_k, *tables.forward)
        free(raw_q, raw_k)
        attended, probabilities = call("attention", q, k, v, tables.mask)
        (middle,) = call("attention_out", attended, weights[OUT], x)
        return normed, q, k, v, probabilities, attended, middle

    def _backward_mlp(self, weights: Weights, middle: Buffer, dy: Buffer, totals: dict[str, Buffer | None]) -> Buffer:
        """Gradient of `middle`, the MLP's input. Frees middle and dy."""
        free, call = self.backend.free, self._graphs.call
        (normed,) = call("norm", middle, weights[POST_NORM])
        gate, up = call("gate_up", normed, weights[GATE], weights[UP])
        dgate, dup, product = call("swiglu_down_backward", dy, gate, up, weights[DOWN])
        free(gate, up)
        self._accumulate("down", totals, DOWN, dy, product)
        free(product)
        (dnormed,) = call("gate_up_input_grad", dgate, weights[GATE], dup, weights[UP])
        self._accumulate("gate", totals, GATE, dgate, normed)
        self._accumulate("gate", totals, UP, dup, normed)
        free(dgate, dup, normed)
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
        recomputed: tuple[Buffer, ...],
    ) -> Buffer:
        """Gradient of x. Frees dmiddle and what was recomputed."""
        free, call = self.backend.free, self._graphs.call
        normed, q, k, v, probabilities, attended = recomputed
        self._accumulate("out", totals, OUT, dmiddle, attended)
        (dattended,) = call("out_input_grad", dmiddle, weights[OUT])
        rotated_dq, rotated_dk, dv = call("attention_backward", dattended, q, k, v, probabilities, attended)
        free(dattended, q, k, v, probabilities, attended)
        dq, dk = call("rotate", rotated_dq, rotated_dk, *tables.backward)
        free(rotated_dq, rotated_dk)
        dnormed, *by_token = call("qkv_input_grad", dq, dk, dv, weights[Q], weights[K], weights[V])
        free(dq, dk, dv)
        for weight, name, dy in zip(("q", "kv", "kv"), (Q, K, V), by_token, strict=True):
            self._accumulate(weight, totals, name, dy, normed)
        if self.config.qkv_bias:
            self._accumulate_biases(totals, by_token)
        free(normed, *by_token)
        dx = self._backward_norm(totals, INPUT_NORM, dnormed, x, weights, dmiddle)
        free(dnormed, dmiddle)
        return dx

    def _accumulate(self, weight: str, totals: dict[str, Buffer | None], name: str, dy: Buffer, x: Buffer) -> None:
        totals[name] = self._graphs.weight_grad(weight, totals.get(name), dy, x)

    def _accumulate_biases(self, totals: dict[str, Buffer | None], by_token: list[Buffer]) -> None:
        names = (Q_BIAS, K_BIAS, V_BIAS)
        old = [totals.get(name) for name in names]
        start = (total or self._graphs.zeros(self.shapes[name]) for total, name in zip(old, names, strict=True))
        totals.update(zip(names, self._graphs.call("bias_grads", *start, *by_token), strict=True))
        self.backend.free(*(total for total in old if total is not None))

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
        start = old or self._graphs.zeros(self.shapes[name])
        dx, totals[name] = self._graphs.call("norm_backward", start, dnormed, x, weights[name], residual)
        if old is not None:
            self.backend.free(old)
        return dx
