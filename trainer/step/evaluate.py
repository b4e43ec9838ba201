"""Loss on held-out data: the forward half of a step, from the same graphs, which changes nothing.

It needs less device memory than a step: between steps a device holds no accumulators and no kept inputs, and a chunk's
logits are freed as soon as they are used. Devices take turns: one micro-batch goes all the way up, then the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from trainer.data.corpus import Batch
from trainer.step.loop import NonFiniteLossError
from trainer.step.masks import DocumentMasks
from trainer.step.network import Network


def held_out_loss(
    network: Network, batches: Iterable[Batch], *, step: int, stopped: Callable[[], bool]
) -> float | None:
    """The mean loss (natural logarithm) over all label tokens of `batches`, after `step` steps.

    stopped: asked before each micro-batch; once it is true, None is returned
    Raises NonFiniteLossError.
    """
    total, label_tokens = 0.0, 0
    for batch in batches:
        if stopped():
            return None
        loss = _loss(network, batch)
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"the held-out loss after step {step} is {loss} on {batch.where} of --eval-data",
                hint="the step is saved if its weights are finite; look at that part of the data, or lower --lr",
            )
        total += loss
        label_tokens += batch.label_tokens
    return total / label_tokens


def _loss(network: Network, batch: Batch) -> float:
    """Summed over the batch's label tokens."""
    where = network.layers[0].backend
    masks = {id(device): DocumentMasks(network.step, device) for device in network.devices}
    x = where.upload(network.embedding.look_up(batch.tokens.flatten()), "activations")
    for layer in network.layers:
        if layer.backend is not where:
            x, where = layer.backend.upload(where.take(x), "activations"), layer.backend
        below, x = x, layer.forward(x, masks[id(where)].of(0, batch))
        where.free(below)
    for each in masks.values():
        each.free()
    head = network.place.runner.backend
    if head is not where:
        x = head.upload(where.take(x), "activations")
    try:
        return network.place.loss(x, batch.labels.flatten())
    finally:
        head.free(x)
