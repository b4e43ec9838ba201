"""The head: final norm, logits in chunks of the vocabulary, cross-entropy and its gradients.

The device has what is large: logits, their log-sum-exps, the softmax part of the gradients. The host has what picks one
row a token: the target's logit and its part of the gradients, from its own copy of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, DeviceBackend
from graphcache.errors import GraphcacheError
from trainer.catalogs.head import Chunks, parts
from trainer.host.pages import copy
from trainer.model.config import ModelConfig
from trainer.model.graph_set import GraphSet
from trainer.model.rope import MASKED
from trainer.model.row_gradients import RowGradients

# What rounding may leave of the 1 that the largest logit adds to a sum of exponentials.
LEAST_SUM = 0.98
# The label of a token whose loss does not count, as in transformers.
IGNORED = -100


class WrongGraphError(GraphcacheError):
    """A compiled graph's result is none that its function can give."""

    name = "wrong-graph"


@dataclass
class HeadWeights:
    """`table` is the host's copy [V, H] policy, shared with whoever updates it; the device has it in chunks of rows."""

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
    """Runs the head on `backend`; `options` say sequence, micro-batch and dtype policy, as in the catalog."""

    def __init__(self, backend: DeviceBackend, config: ModelConfig, options: CatalogOptions) -> None:
        self.backend = backend
        self.config = config
        self.options = options
        self.chunks = Chunks.of(config.vocab)
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._biases: tuple[Buffer, ...] = ()
        self._graphs = GraphSet(backend, parts(config, options))

    def load(self) -> None:
        """Load the head's graphs. Raises MissingGraphsError when the cache lacks one."""
        self._graphs.load()

    def upload_chunks(self, table: Tensor) -> tuple[Buffer, ...]:
        """The table [V, H] policy in equal chunks of rows, the last one filled up with zeros; it is lent to them."""
        rows, chunks = self.chunks.rows, []
        for start in range(0, self.config.vocab, rows):
            chunk = table[start : start + rows]
            if len(chunk) < rows:
                chunk = torch.cat((chunk, chunk.new_zeros(rows - len(chunk), self.config.hidden)))
            chunks.append(self.backend.upload(chunk, f"head rows from {start}", lent=True))
        return tuple(chunks)

    def loss_and_backward(
        self, weights: HeadWeights, x: Buffer, labels: Tensor, grads: HeadGrads, scale: float
    ) -> tuple[float, Buffer]:
        """The cross-entropy summed over the counted tokens, and the gradient, by x, of that sum times `scale`.

        x:      [T, H] policy, the last layer's output; not freed
        labels: [T] int64 on the host: the token that follows each position, or IGNORED
        grads:  gets the parameters' gradients of the scaled sum added
        """
        free, call = self.backend.free, self._graphs.call
        (hidden,) = call("final_norm", x, weights.norm)
        logits, log_sum_exp = self._forward_chunks(weights, hidden)
        counted = labels != IGNORED
        targets, rows = labels[counted], self.backend.download(hidden)[counted]
        target_rows = weights.table[targets].float()
        # Rounded as the device rounds its logits, so that a sure token's loss does not come out negative.
        target_logits = (rows.float() * target_rows).sum(-1).to(weights.table.dtype).float()
        losses = log_sum_exp[counted] - target_logits

        pull = _target_pull(losses, scale, weights.table.dtype)[:, None]
        grads.rows.add(targets, pull * rows.float())
        dhidden_host = torch.zeros(len(labels), self.config.hidden)
        dhidden_host[counted] = pull * target_rows
        dhidden = self._backward_chunks(weights, hidden, logits, log_sum_exp, counted * scale, dhidden_host, grads)
        old = grads.norm
        dx, grads.norm = call(
            "final_norm_backward", old or self._graphs.zeros((self.config.hidden,)), dhidden, x, weights.norm
        )
        free(dhidden, hidden, *(() if old is None else (old,)))
        return losses.double().sum().item(), dx

    def _forward_chunks(self, weights: HeadWeights, hidden: Buffer) -> tuple[list[Buffer], Tensor]:
        """Each chunk's logits on the device, and the log-sum-exp over the vocabulary [T] float32 on the host."""
        logits, parts_ = [], []
        for chunk, bias in zip(weights.chunks, self._chunk_biases(), strict=True):
            chunk_logits, largest, total = self._graphs.call("chunk_forward", hidden, chunk, *bias)
            logits.append(chunk_logits)
            sums = self.backend.take(total)
            _check_sums(sums)
            parts_.append(self.backend.take(largest) + sums.log())
        return logits, torch.logsumexp(torch.stack(parts_), 0)

    def _chunk_biases(self) -> list[tuple[Buffer, ...]]:
        """What `chunk_forward` takes beside each chunk: nothing, or [C] policy that keeps padding out."""
        if not self.chunks.padding:
            return [()] * self.chunks.count
        if not self._biases:
            last = torch.zeros(self.chunks.rows, dtype=self._dtype)
            whole = self.backend.upload(last, "bias of whole chunks")
            last[-self.chunks.padding :] = MASKED
            self._biases = whole, self.backend.upload(last, "bias of the last chunk")
        whole, last_one = self._biases
        return [*[(whole,)] * (self.chunks.count - 1), (last_one,)]

    def _backward_chunks(
        self,
        weights: HeadWeights,
        hidden: Buffer,
        logits: list[Buffer],
        log_sum_exp: Tensor,  # [T] float32
        coefficient: Tensor,  # [T] float32
        dhidden_host: Tensor,  # [T, H] float32: what the chunks add to
        grads: HeadGrads,
    ) -> Buffer:
        """Gradient of the normed hidden state [T, H] float32. Frees the logits as it goes."""
        upload, free, call = self.backend.upload, self.backend.free, self._graphs.call
        per_token = upload(log_sum_exp, "log-sum-exp"), upload(coefficient.float(), "loss coefficient")
        dhidden = upload(dhidden_host, "targets' gradient")
        totals: list[Buffer | None] = [*grads.chunks] or [None] * self.chunks.count
        grads.chunks = []
        for chunk, chunk_logits, total in zip(weights.chunks, logits, totals, strict=True):
            (dlogits,) = call("chunk_softmax_backward", chunk_logits, *per_token)
            old = dhidden
            (dhidden,) = call("chunk_input_grad", old, dlogits, chunk)
            free(old, chunk_logits)
            grads.chunks.append(self._graphs.weight_grad("chunk", total, dlogits, hidden))
            free(dlogits)
        free(*per_token)
        return dhidden

    def table_grad(self, grads: HeadGrads) -> Iterator[Tensor]:
        """The table's gradient on the host, a chunk of rows at a time, flat, in the policy's dtype, without padding.

        The targets' rows are added in float32 before the one rounding. Uses the chunks' accumulators up.
        """
        chunks, grads.chunks = grads.chunks, []
        for i, chunk in enumerate(chunks):
            start = i * self.chunks.rows
            total = self.backend.take(chunk)
            rounded = copy(total, self._dtype)
            rows, values = grads.rows.between(start, start + self.chunks.rows)
            rounded[rows] = (total[rows] + values).to(self._dtype)
            yield rounded[: self.config.vocab - start].flatten()


def _check_sums(sums: Tensor) -> None:
    """That a chunk's sums of exp(logit - largest) are such sums. Raises WrongGraphError.

    The compiler once took twice the largest logit for it (docs/compiler-workarounds.md): right as long as nothing
    underflows, and a loss of infinity after that. NaN is left to the check of the loss.
    """
    least = sums.min().item()
    if least < LEAST_SUM:
        raise WrongGraphError(
            f"head.chunk_forward gives {least:.3g} for a sum of exponentials of which the largest is 1",
            hint="its artifact is wrong: graphcache verify --numeric shows it; another --seq gives another graph",
        )


def _target_pull(losses: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """What the host adds for a target, [n] float32: the gradient of its logit less what the device already counted.

    The device adds probability * scale rounded to the policy's dtype. Counting the same rounding here keeps the
    difference of two nearly equal numbers exact for a token that the model is sure of.
    """
    scaled = torch.exp(-losses) * scale
    return scaled - scale - scaled.to(dtype).float()
