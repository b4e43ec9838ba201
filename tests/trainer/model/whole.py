"""A whole model through the runners: loss and every gradient, as the trainer's loop does one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.device.base import DeviceBackend
from trainer.architecture.config import ModelConfig
from trainer.model.head import HeadGrads, HeadRunner, HeadWeights
from trainer.model.layer import LayerRunner

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def loss_and_gradients(
    backend: DeviceBackend,
    config_json: Mapping[str, Any],
    state: Mapping[str, Tensor],
    batches: list[tuple[Tensor, Tensor]],
    options: CatalogOptions,
) -> tuple[float, dict[str, Tensor]]:
    """Mean loss over all counted tokens, and the gradient of it by tensor name, float32.

    state:   the checkpoint's tensors in the compute dtype
    batches: (tokens, labels), [B, S] int64 each, labels shifted already: one micro-batch each
    """
    config = ModelConfig.from_json(config_json)
    runner, head = LayerRunner(backend, config, options), HeadRunner(backend, config, options)
    runner.load()
    head.load()
    tables = runner.upload_tables()
    layers = [
        {
            weight.name: backend.upload(
                torch.cat([state[f"model.layers.{i}.{name}"] for name, _ in weight.parts]), weight.name
            )
            for weight in runner.weights
        }
        for i in range(config.layers)
    ]
    table = state[EMBEDDING if config.tied else HEAD]
    head_weights = HeadWeights(backend.upload(state[NORM], "norm.weight"), head.upload_chunks(table), table)
    head_grads, layer_grads = HeadGrads(), [{} for _ in layers]
    embedding = torch.zeros(state[EMBEDDING].shape)
    count = sum(int((labels != -100).sum()) for _, labels in batches)
    total = 0.0
    for tokens, labels in batches:
        inputs = [backend.upload(state[EMBEDDING][tokens.flatten()], "embedded tokens")]
        for weights in layers:
            inputs.append(runner.forward(weights, inputs[-1], tables))
        loss, dx = head.loss_and_backward(head_weights, inputs[-1], labels.flatten(), head_grads, 1 / count)
        backend.free(inputs.pop())
        total += loss
        for i in reversed(range(config.layers)):
            dx, layer_grads[i] = runner.backward(layers[i], inputs[i], dx, layer_grads[i], tables)
            backend.free(inputs.pop())
        embedding.index_add_(0, tokens.flatten(), backend.download(dx).float())
        backend.free(dx)
    gradients = {NORM: backend.download(head_grads.norm)}
    for i, grads in enumerate(layer_grads):
        for weight in runner.weights:
            rows = backend.download(grads[weight.name]).split([shape[0] for _, shape in weight.parts])
            gradients |= {f"model.layers.{i}.{name}": part for (name, _), part in zip(weight.parts, rows, strict=True)}
        backend.free(*grads.values())
    backend.free(head_grads.norm)
    table = torch.cat(list(head.table_grad(head_grads))).view(-1, config.hidden).float()
    if config.tied:
        gradients[EMBEDDING] = embedding + table
    else:
        gradients |= {EMBEDDING: embedding, HEAD: table}
    return total / count, gradients
