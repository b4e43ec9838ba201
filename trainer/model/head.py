"""The head: final norm, logits in chunks of the vocabulary, cross-entropy and its gradients.

The device has what is large: logits, their log-sum-exps, the softmax part of the gradients, as `trainer.model.head_ops`
lists it. The host has what picks one row a token: the target's logit and its part of the gradients, from its own copy
of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, DeviceBackend
from graphcache.errors import GraphcacheError
from trainer.architecture.config import ModelConfig
from trainer.catalogs.head import parts
from trainer.graphs.layer import MASKED
from trainer.host.pages import copy
from trainer.model.graph_set import GraphSet
from trainer.model.head_ops import (
    BIAS,
    COEFFICIENT,
    HIDDEN,
    LAST_BIAS,
    LOG_SUM_EXP,
    NORM,
    TARGET_GRAD,
    HeadOps,
    chunk,
    largest,
    sums,
)
from trainer.model.layer_ops import INPUT, INPUT_GRAD, grad, zeros
from trainer.model.row_gradients import RowGradients
from trainer.model.runner import carry_out

# What rounding may leave of the 1 that the largest logit adds to a sum of exponentials.
LEAST_SUM = 0.98
# The label of a token whose loss does not count, as in transformers.
IGNORED = -100


class WrongGraphError(GraphcacheError):
    """A compiled graph's result is none that its function can give."""

    name = "wrong-graph"


@dataclass
class HeadWeights:
    """`table` is the host's copy [V, H] compute, shared with its optimizer; the device has it in chunks of rows."""

    norm: Buffer
    chunks: tuple[Buffer, ...]
    table: Tensor


@dataclass
class HeadGrads:
    """Gradients over the micro-batches so far.

    norm:   [H] float32 on the device
    chunks: [C, H] float32 on the device for each chunk of the vocabulary, without `rows`
    rows:   on the host, to be added to the table's gradient: the targets' part, and for a tied table whatever the
            embedding adds
    """

    norm: Buffer | None = None
    chunks: list[Buffer] = field(default_factory=list)
    rows: RowGradients = field(default_factory=RowGradients)


class HeadRunner:
    """Runs the head on `backend`; `options` say sequence, micro-batch and compute dtype, as in the catalog."""

    def __init__(self, backend: DeviceBackend, config: ModelConfig, options: CatalogOptions) -> None:
        self.backend = backend
        self.config = config
        self.options = options
        ops = HeadOps(config, options)
        self.chunks = ops.chunks
        self._forward, self._loss = ops.forward(), ops.loss()
        self._backward = {first: ops.backward(first=first) for first in (True, False)}
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._tables: dict[str, Buffer] = {}
        self._graphs = GraphSet(backend, parts(config, options))

    def load(self) -> None:
        """Load the head's graphs and constants. Raises MissingGraphsError when the cache lacks one."""
        self._graphs.load()
        norm = (self.config.hidden,)
        self._tables = {zeros(norm): self._graphs.zeros(norm), **self._biases()}

    def _biases(self) -> dict[str, Buffer]:
        """What keeps padding out of the chunks, [C] compute; nothing without padding."""
        if not self.chunks.padding:
            return {}
        last = torch.zeros(self.chunks.rows, dtype=self._dtype)
        last[-self.chunks.padding :] = MASKED
        biases = {BIAS: torch.zeros_like(last), LAST_BIAS: last}
        return {name: self.backend.upload(bias, name) for name, bias in biases.items()}

    def upload_chunks(self, table: Tensor) -> tuple[Buffer, ...]:
        """The table [V, H] compute in equal chunks of rows, the last one filled up with zeros; it is lent to them."""
        rows, chunks = self.chunks.rows, []
        for start in range(0, self.config.vocab, rows):
            part = table[start : start + rows]
            if len(part) < rows:
                part = torch.cat((part, part.new_zeros(rows - len(part), self.config.hidden)))
            chunks.append(self.backend.upload(part, f"head rows from {start}", lent=True))
        return tuple(chunks)

    def loss_and_backward(
        self, weights: HeadWeights, x: Buffer, labels: Tensor, grads: HeadGrads, scale: float
    ) -> tuple[float, Buffer]:
        """The cross-entropy summed over the counted tokens, and the gradient, by x, of that sum times `scale`.

        x:      [T, H] compute, the last layer's output; not freed
        labels: [T] int64 on the host: the token that follows each position, or IGNORED
        grads:  gets the parameters' gradients of the scaled sum added
        """
        buffers = self._buffers(weights, x)
        found = carry_out(self._forward, buffers, self._graphs)
        log_sum_exp = self._log_sum_exp(found)
        counted = labels != IGNORED
        targets, rows = labels[counted], found[HIDDEN][counted]
        target_rows = weights.table[targets].float()
        losses = log_sum_exp[counted] - _target_logits(rows, target_rows, weights.table.dtype)

        pull = _target_pull(losses, scale, weights.table.dtype)[:, None]
        grads.rows.add(targets, pull * rows.float())
        dhidden = torch.zeros(len(labels), self.config.hidden)
        dhidden[counted] = pull * target_rows
        host = {LOG_SUM_EXP: log_sum_exp, COEFFICIENT: (counted * scale).float(), TARGET_GRAD: dhidden}
        return losses.double().sum().item(), self._accumulate(buffers, host, grads)

    def loss(self, weights: HeadWeights, x: Buffer, labels: Tensor) -> float:
        """The same loss without any gradient; arguments as in `loss_and_backward`."""
        found = carry_out(self._loss, self._buffers(weights, x), self._graphs)
        counted = labels != IGNORED
        rows, target_rows = found[HIDDEN][counted], weights.table[labels[counted]].float()
        losses = self._log_sum_exp(found)[counted] - _target_logits(rows, target_rows, weights.table.dtype)
        return losses.double().sum().item()

    def _buffers(self, weights: HeadWeights, x: Buffer) -> dict[str, Buffer]:
        chunks = {chunk(i): buffer for i, buffer in enumerate(weights.chunks)}
        return {**self._tables, NORM: weights.norm, INPUT: x, **chunks}

    def _log_sum_exp(self, found: Mapping[str, Tensor]) -> Tensor:
        """Over the whole vocabulary, [T] float32, from the chunks' largest logits and sums of exponentials."""
        for i in range(self.chunks.count):
            _check_sums(found[sums(i)])
        of_chunks = [found[largest(i)] + found[sums(i)].log() for i in range(self.chunks.count)]
        return torch.logsumexp(torch.stack(of_chunks), 0)

    def _accumulate(self, buffers: dict[str, Buffer], host: Mapping[str, Tensor], grads: HeadGrads) -> Buffer:
        """The gradient of x [T, H] compute; `grads` gets those of norm and chunks added."""
        first = grads.norm is None
        if grads.norm is not None:
            buffers |= {grad(NORM): grads.norm, **{grad(chunk(i)): b for i, b in enumerate(grads.chunks)}}
        carry_out(self._backward[first], buffers, self._graphs, host)
        grads.norm = buffers[grad(NORM)]
        grads.chunks = [buffers[grad(chunk(i))] for i in range(self.chunks.count)]
        return buffers[INPUT_GRAD]

    def table_grad(self, grads: HeadGrads) -> Iterator[Tensor]:
        """The table's gradient on the host, a chunk of rows at a time, flat, in the compute dtype, without padding.

        The targets' rows are added in float32 before the one rounding. Uses the chunks' accumulators up.
        """
        totals, grads.chunks = grads.chunks, []
        for i, buffer in enumerate(totals):
            start = i * self.chunks.rows
            total = self.backend.take(buffer)
            rounded = copy(total, self._dtype)
            rows, values = grads.rows.between(start, start + self.chunks.rows)
            rounded[rows] = (total[rows] + values).to(self._dtype)
            yield rounded[: self.config.vocab - start].flatten()


def _check_sums(sums: Tensor) -> None:
    """Refuses sums of exp(logit - largest) that no chunk of logits can have. Raises WrongGraphError.

    The compiler once took twice the largest logit for it (docs/compiler-workarounds.md): right as long as nothing
    underflows, and a loss of infinity after that. NaN is left to the check of the loss.
    """
    least = sums.min().item()
    if least < LEAST_SUM:
        raise WrongGraphError(
            f"head.chunk_forward gives {least:.3g} for a sum of exponentials of which the largest is 1",
            hint="its artifact is wrong: graphcache prove shows it; another --seq gives another graph",
        )


def _target_logits(rows: Tensor, target_rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits of the targets, [n] float32, rounded as the device rounds its own: else the loss of a token that the model
    is sure of could come out negative."""
    return (rows.float() * target_rows).sum(-1).to(dtype).float()


def _target_pull(losses: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """What the host adds for a target, [n] float32: the gradient of its logit less what the device already counted.

    The device adds probability * scale rounded to the compute dtype. Counting the same rounding here keeps the
    difference of two nearly equal numbers exact for a token that the model is sure of.
    """
    scaled = torch.exp(-losses) * scale
    return scaled - scale - scaled.to(dtype).float()
