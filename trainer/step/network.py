"""One micro-batch through the whole model, a layer at a time, over one device or several.

Forward keeps each layer's input; backward recomputes a layer from it and frees it. Between devices activations go over
the host, bit for bit, so where the layers are changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from graphcache.device.base import Buffer, DeviceBackend
from trainer.data.corpus import Batch
from trainer.step.clock import Clock
from trainer.step.units import EmbeddingUnit, HeadPlace, HeadUnit, LayerUnit, NormUnit

ModelUnit = LayerUnit | NormUnit | HeadUnit | EmbeddingUnit


@dataclass(frozen=True)
class Activation:
    """[T, H] of the policy's dtype, and the device that it is on."""

    buffer: Buffer
    device: DeviceBackend

    def to(self, device: DeviceBackend) -> Activation:
        """Itself when it is there already, else a copy there; the original is freed then."""
        if device is self.device:
            return self
        return Activation(device.upload(self.device.take(self.buffer), "activations"), device)

    def free(self) -> None:
        self.device.free(self.buffer)


@dataclass(frozen=True)
class Network:
    """The units of a model. `embedding` is the head's own unit when the two are tied."""

    embedding: EmbeddingUnit | HeadUnit
    layers: tuple[LayerUnit, ...]
    norm: NormUnit
    head: HeadUnit
    place: HeadPlace

    @property
    def tied(self) -> bool:
        return self.embedding is self.head

    @property
    def units(self) -> tuple[ModelUnit, ...]:
        """Every unit once, in the order of a checkpoint."""
        return (self.embedding, *self.layers, self.norm, *(() if self.tied else (self.head,)))

    def micro_batch(
        self,
        batch: Batch,
        scale: float,
        clock: Clock,
        *,
        on_loss: Callable[[float], None],
        on_final: Callable[[ModelUnit], None],
    ) -> None:
        """Forward and backward of one micro-batch; the gradients of `scale` times its loss are added to the units'.

        on_loss:  called with the loss summed over the batch's labels, before anything is final
        on_final: called with each unit when this micro-batch's gradients are in it, the top of the model first
        """
        tokens = batch.tokens.flatten()
        inputs, x = self._forward(tokens, clock)
        with clock.phase("head"):
            loss, dx = self.place.loss_and_backward(x.buffer, batch.labels.flatten(), scale)
            gradient = Activation(dx, x.device)
            x.free()
        on_loss(loss)
        on_final(self.norm)
        if not self.tied:
            on_final(self.head)
        for layer in reversed(self.layers):
            with clock.phase("backward"):
                x = inputs.pop()
                gradient = gradient.to(layer.backend)
                gradient = Activation(layer.backward(x.buffer, gradient.buffer), layer.backend)
                x.free()
            on_final(layer)
        with clock.phase("embedding"):
            self.embedding.add_rows(tokens, gradient.device.take(gradient.buffer).float())
        on_final(self.embedding)

    def _forward(self, tokens: Tensor, clock: Clock) -> tuple[list[Activation], Activation]:
        """Each layer's input, and the last one's output on the head's device."""
        first = self.layers[0].backend
        with clock.phase("embedding"):
            x = Activation(first.upload(self.embedding.look_up(tokens), "embedded tokens"), first)
        inputs = []
        with clock.phase("forward"):
            for layer in self.layers:
                x = x.to(layer.backend)
                inputs.append(x)
                x = Activation(layer.forward(x.buffer), layer.backend)
            x = x.to(self.place.runner.backend)
        return inputs, x
