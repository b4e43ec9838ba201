"""A step as it was before layers had groups: one micro-batch after the other, through everything.

Kept as the reference that the schedule is held against, bit for bit: same units, same graphs, another order.
"""

from __future__ import annotations

import torch

from graphcache.device.base import Buffer, DeviceBackend
from trainer.step.masks import DocumentMasks
from trainer.step.play import StepPlay
from trainer.step.schedule import Update


def run(play: StepPlay) -> None:
    """What `StepPlay.run` does."""
    for number in range(len(play.batches)):
        _micro_batch(play, number)
    network = play.network
    play.on_final(Update("norm"))
    if not network.tied:
        play.on_final(Update("head"))
    for layer in reversed(range(len(network.layers))):
        play.on_final(Update(layer))
    play.on_final(Update("head" if network.tied else "embedding"))


def _micro_batch(play: StepPlay, number: int) -> None:
    network, batch = play.network, play.batches[number]
    tokens = batch.tokens.flatten()
    device = network.layers[0].backend
    x, inputs = device.upload(network.embedding.look_up(tokens), "embedded tokens"), []
    masks = {id(each): DocumentMasks(network.step, each) for each in network.devices}
    for layer in network.layers:
        x, device = _moved(x, device, layer.backend), layer.backend
        inputs.append(x)
        x = layer.forward(x, masks[id(device)].of(0, batch))
    x, device = _moved(x, device, network.devices[-1]), network.devices[-1]
    loss, gradient = network.place.loss_and_backward(x, batch.labels.flatten(), play.scale)
    device.free(x)
    play.on_loss(number, loss)
    for layer, kept in zip(reversed(network.layers), reversed(inputs), strict=True):
        gradient, device = _moved(gradient, device, layer.backend), layer.backend
        gradient = layer.backward(kept, gradient, masks[id(device)].of(0, batch))
        device.free(kept)
    for each in masks.values():
        each.free()
    network.embedding.add_rows(tokens, device.take(gradient).to(torch.float32))


def _moved(buffer: Buffer, source: DeviceBackend, target: DeviceBackend) -> Buffer:
    return buffer if source is target else target.upload(source.take(buffer), "activation")
