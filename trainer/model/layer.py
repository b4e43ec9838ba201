"""One decoder layer on a device: carries out what `trainer.model.layer_ops` lists.

A runner serves every layer of a model on one backend: they share graphs, rotary tables and the zeros that a step's
first vector gradients are added to.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, DeviceBackend
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import Weight, device_weights, parameter_shapes
from trainer.catalogs.layer import parts
from trainer.model.graph_set import GraphSet
from trainer.model.layer_ops import (
    COS,
    INPUT,
    INPUT_GRAD,
    MASK,
    OUTPUT,
    OUTPUT_GRAD,
    SIN,
    SIN_BACK,
    LayerOps,
    grad,
    zeros,
)
from trainer.model.rope import causal_mask, rotate_tables
from trainer.model.runner import carry_out

# Buffers by the names that `layer_ops` gives them.
Weights = Mapping[str, Buffer]
Tables = Mapping[str, Buffer]


class LayerRunner:
    """Runs layers on `backend`; `options` say sequence, micro-batch and compute dtype, as in the catalog."""

    def __init__(self, backend: DeviceBackend, config: ModelConfig, options: CatalogOptions) -> None:
        self.backend = backend
        self.config = config
        self.options = options
        self.shapes = parameter_shapes(config)
        self.weights: tuple[Weight, ...] = device_weights(self.shapes)
        ops = LayerOps(config, options)
        self._forward = ops.forward()
        self._backward = {first: ops.backward(first=first) for first in (True, False)}
        self._graphs = GraphSet(backend, parts(config, options))

    def load(self) -> None:
        """Load the layer's graphs. Raises MissingGraphsError when the cache lacks one."""
        self._graphs.load()

    def upload_tables(self) -> Tables:
        """Rotary tables, the causal mask of every sequence, the zeros that vectors' first gradients are added to."""
        cos, sin = rotate_tables(self.config, self.options.sequence, self.options.micro_batch)
        mask = causal_mask(self.options.sequence, self.config.heads // self.config.kv_heads)
        tables = {COS: cos, SIN: sin, SIN_BACK: -sin, MASK: mask}
        vectors = {weight.shape for weight in self.weights if len(weight.shape) == 1}
        return {
            **{name: self.backend.upload(table, name) for name, table in tables.items()},
            **{zeros(shape): self._graphs.zeros(shape) for shape in vectors},
        }

    def forward(self, weights: Weights, x: Buffer, tables: Tables) -> Buffer:
        """The layer's output [T, H] compute from its input [T, H] compute. Frees neither."""
        buffers = {**weights, **tables, INPUT: x}
        carry_out(self._forward, buffers, self._graphs)
        return buffers[OUTPUT]

    def backward(
        self, weights: Weights, x: Buffer, dy: Buffer, grads: Mapping[str, Buffer], tables: Tables
    ) -> tuple[Buffer, dict[str, Buffer]]:
        """Gradient of x [T, H] compute, and the weights' accumulators with this micro-batch added, float32.

        Recomputes the layer from x. `grads` holds the accumulators so far (empty before the first micro-batch) and is
        used up: read what is returned. Frees dy, not x.
        """
        buffers = {**weights, **tables, INPUT: x, OUTPUT_GRAD: dy}
        buffers |= {grad(name): buffer for name, buffer in grads.items()}
        carry_out(self._backward[not grads], buffers, self._graphs)
        return buffers[INPUT_GRAD], {weight.name: buffers[grad(weight.name)] for weight in self.weights}
