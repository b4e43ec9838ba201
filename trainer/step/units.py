"""The parts of a model that are updated together, each with its weights where they are used.

A layer's weights are on its device. A table of tokens (embedding, head) is on the host, and the head's also in chunks
on the last device. Each unit collects its own gradients over the micro-batches of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from graphcache.device.base import Buffer, DeviceBackend
from trainer.checkpoint.pretrained import EMBEDDING, HEAD, NORM, layer_prefix
from trainer.host.pages import empty
from trainer.model.head import HeadGrads, HeadRunner, HeadWeights
from trainer.model.layer import LayerRunner, Tables
from trainer.model.row_gradients import RowGradients, TiedRows
from trainer.model.tiles import TileRunner
from trainer.optim.base import Parameter, Piece
from trainer.step.fused_weights import Assembly

# Rows of a table whose gradient exists at one time.
TABLE_ROWS = 16_384


class LayerUnit:
    """One decoder layer on its device. `resident`: whether its matrices' optimizer state is there too."""

    def __init__(
        self, index: int, runner: LayerRunner, tables: Tables, tiles: TileRunner, *, resident: bool = False
    ) -> None:
        self.prefix = layer_prefix(index)
        self.name = self.prefix.rstrip(".")
        self.parameters = tuple(Parameter(name, shape) for name, shape in runner.shapes.items())
        self.backend = runner.backend
        self.weights = runner.weights
        self._runner = runner
        self._tables = tables
        self._tiles = tiles
        self.resident = resident
        self._dtype: torch.dtype = getattr(torch, runner.options.dtype)
        self._weights: dict[str, Buffer] = {}
        self._gradients: dict[str, Buffer] = {}
        self._assembly = Assembly(runner.weights, self._dtype)

    def forward(self, x: Buffer, masks: Tables | None = None) -> Buffer:
        """[T, H] compute -> [T, H] compute; x is not freed. masks: tables of this micro-batch alone."""
        return self._runner.forward(self._weights, x, {**self._tables, **(masks or {})})

    def backward(self, x: Buffer, dy: Buffer, masks: Tables | None = None) -> Buffer:
        """Gradient of x from that of the output; frees dy. The parameters' gradients are kept."""
        tables = {**self._tables, **(masks or {})}
        dx, self._gradients = self._runner.backward(self._weights, x, dy, self._gradients, tables)
        return dx

    def drop_weights(self) -> None:
        self.backend.free(*self._weights.values())
        self._weights = {}

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        gradients, self._gradients = self._gradients, {}
        for weight in self.weights:
            total = gradients.pop(weight.name)
            if len(weight.shape) > 1:
                yield from self._tiles.cut(weight, total)
            else:
                host = self.backend.take(total).to(self._dtype)
                parts = torch.split(host, [shape[0] for _, shape in weight.parts])
                yield from zip((name for name, _ in weight.parts), parts, strict=True)

    def place(self, name: str) -> Tensor:
        return self._assembly.place(name)

    def install(self, name: str) -> None:
        complete = self._assembly.written(name)
        if complete is not None:
            of, rows = complete
            self.replace(of.name, self.backend.upload(rows.view(of.shape), self.prefix + of.name, lent=True))

    def install_tiles(self, name: str, tiles: Sequence[Buffer]) -> None:
        complete = self._assembly.add_tiles(name, tiles)
        if complete is not None:
            self.replace(complete[0].name, self._tiles.join(*complete))

    def replace(self, name: str, buffer: Buffer) -> None:
        """Make `buffer` the weight of that name, in place of what there was."""
        old = self._weights.get(name)
        self._weights[name] = buffer
        if old is not None:
            self.backend.free(old)


class HeadPlace:
    """What norm and table share: the head's runner, its weights on the last device, its gradients.

    table: [V, H] compute, on the host
    """

    def __init__(self, runner: HeadRunner) -> None:
        self.runner = runner
        self.norm: Buffer | None = None
        self.chunks: tuple[Buffer, ...] = ()
        self.table: Tensor | None = None
        self.gradients = self._no_gradients()

    def loss_and_backward(self, x: Buffer, labels: Tensor, scale: float) -> tuple[float, Buffer]:
        """The loss summed over the labels [T] that count, and the gradient of `scale` times it by x [T, H]."""
        return self.runner.loss_and_backward(self._weights(), x, labels, self.gradients, scale)

    def loss(self, x: Buffer, labels: Tensor) -> float:
        """That loss alone."""
        return self.runner.loss(self._weights(), x, labels)

    def _weights(self) -> HeadWeights:
        assert self.norm is not None
        assert self.table is not None
        return HeadWeights(self.norm, self.chunks, self.table)

    def take_table(self) -> HeadGrads:
        """The gradients without the norm's."""
        taken, self.gradients = self.gradients, self._no_gradients()
        self.gradients.norm, taken.norm = taken.norm, None
        return taken

    def _no_gradients(self) -> HeadGrads:
        return HeadGrads(rows=TiedRows() if self.runner.config.tied else RowGradients())


class NormUnit:
    """The final norm, on the last device."""

    prefix = ""
    name = NORM.removesuffix(".weight")

    def __init__(self, place: HeadPlace) -> None:
        self._place = place
        self.backend: DeviceBackend = place.runner.backend
        self.parameters = (Parameter(NORM, (place.runner.config.hidden,)),)
        self._dtype: torch.dtype = getattr(torch, place.runner.options.dtype)
        self._new = torch.empty(place.runner.config.hidden, dtype=self._dtype)

    def drop_weights(self) -> None:
        assert self._place.norm is not None
        self.backend.free(self._place.norm)
        self._place.norm = None

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        gradient, self._place.gradients.norm = self._place.gradients.norm, None
        assert gradient is not None
        yield NORM, self.backend.take(gradient).to(self._dtype)

    def place(self, name: str) -> Tensor:
        return self._new

    def install(self, name: str) -> None:
        if self._place.norm is not None:
            self.drop_weights()
        self._place.norm = self.backend.upload(self._new, name)


class HeadUnit:
    """The table that the head multiplies: `lm_head`, or the embedding when the two are tied."""

    prefix = ""

    def __init__(self, place: HeadPlace) -> None:
        config = place.runner.config
        self._place = place
        self._weight = EMBEDDING if config.tied else HEAD
        self.name = self._weight.removesuffix(".weight")
        self.backend: DeviceBackend = place.runner.backend
        self.parameters = (Parameter(self._weight, (config.vocab, config.hidden)),)

    def look_up(self, tokens: Tensor) -> Tensor:
        """tokens [T] int64 -> [T, H] compute: the embedding of a tied model."""
        assert self._place.table is not None
        return self._place.table[tokens]

    def add_rows(self, tokens: Tensor, gradients: Tensor) -> None:
        """The embedding's part of a tied table's gradient: tokens [T] int64, gradients [T, H] float32."""
        rows = self._place.gradients.rows
        assert isinstance(rows, TiedRows)
        rows.add_second(tokens, gradients)

    def drop_weights(self) -> None:
        self.backend.free(*self._place.chunks)
        self._place.chunks = ()

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        for piece in self._place.runner.table_grad(self._place.take_table()):
            yield self._weight, piece

    def place(self, name: str) -> Tensor:
        if self._place.table is None:
            self._place.table = empty(self.parameters[0].shape, getattr(torch, self._place.runner.options.dtype))
        return self._place.table.view(-1)

    def install(self, name: str) -> None:
        assert self._place.table is not None
        self.drop_weights()
        self._place.chunks = self._place.runner.upload_chunks(self._place.table)


class EmbeddingUnit:
    """The embedding of a model whose head is another table: on the host alone."""

    prefix = ""
    name = EMBEDDING.removesuffix(".weight")
    backend = None

    def __init__(self, vocab: int, hidden: int, dtype: str) -> None:
        self.parameters = (Parameter(EMBEDDING, (vocab, hidden)),)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._table = empty((vocab, hidden), self._dtype)
        self._rows = RowGradients()

    def look_up(self, tokens: Tensor) -> Tensor:
        """tokens [T] int64 -> [T, H] compute"""
        return self._table[tokens]

    def add_rows(self, tokens: Tensor, gradients: Tensor) -> None:
        """tokens [T] int64 and their gradients [T, H] float32"""
        self._rows.add(tokens, gradients)

    def drop_weights(self) -> None:
        """Nothing: no device has a copy."""

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        gradients, self._rows = self._rows, RowGradients()
        vocab, hidden = self.parameters[0].shape
        for begin in range(0, vocab, TABLE_ROWS):
            end = min(begin + TABLE_ROWS, vocab)
            piece = torch.zeros(end - begin, hidden, dtype=self._dtype)
            rows, values = gradients.between(begin, end)
            piece[rows] = values.to(self._dtype)
            yield EMBEDDING, piece.flatten()

    def place(self, name: str) -> Tensor:
        return self._table.view(-1)

    def install(self, name: str) -> None:
        """Nothing: it is where it is used."""
