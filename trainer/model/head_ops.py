"""The head on its device: final norm, logits in chunks of the vocabulary, their gradients. No torch.

The arithmetic is in `trainer.graphs.head`, the graphs in `trainer.catalogs.head`; between the two passes the host
computes what `trainer.model.head` says. T tokens of a micro-batch, hidden H, C rows of the vocabulary in a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphcache.catalog import CatalogOptions
from graphcache.graph import TensorSpec
from trainer.architecture.config import ModelConfig
from trainer.catalogs.head import Chunks
from trainer.model.layer_ops import INPUT, INPUT_GRAD, accumulate, grad, zeros
from trainer.model.ops import Call, Download, Free, Op, Upload

# Names of buffers that outlive a pass, and of what goes to and from the host.
NORM, BIAS, LAST_BIAS = "norm", "bias", "last bias"
HIDDEN, LOG_SUM_EXP, COEFFICIENT, TARGET_GRAD = "hidden", "log_sum_exp", "coefficient", "dhidden 0"


def chunk(i: int) -> str:
    """The name of a chunk of the table."""
    return f"chunk {i}"


def largest(i: int) -> str:
    """The name of a chunk's largest logits, and with them go `sums`."""
    return f"largest {i}"


def sums(i: int) -> str:
    return f"sums {i}"


class HeadOps:
    """The passes through the head of a model."""

    def __init__(self, config: ModelConfig, options: CatalogOptions) -> None:
        self.chunks = Chunks.of(config.vocab)
        self._hidden = config.hidden
        self._dtype = options.dtype
        self._tokens = options.micro_batch * options.sequence

    def forward(self) -> tuple[Op, ...]:
        """The normed `hidden`, the logits, and on the host what a log-sum-exp needs. Does not free `x`."""
        return tuple(self._forward(keeps=True))

    def loss(self) -> tuple[Op, ...]:
        """The same where no backward pass follows: on the device nothing is left but `x`."""
        return tuple(self._forward(keeps=False))

    def backward(self, *, first: bool) -> tuple[Op, ...]:
        """`dx` [T, H], and this micro-batch's gradients added to the accumulators. Frees the logits, not `x`."""
        return tuple(self._backward(first))

    def _tensor(self, name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, self._dtype, shape)

    def _per_token(self, name: str) -> TensorSpec:
        return TensorSpec(name, "float32", (self._tokens,))

    def _wide(self, i: int) -> TensorSpec:
        """The gradient of `hidden` with the parts of `i` chunks in it."""
        return TensorSpec(f"dhidden {i}", "float32", (self._tokens, self._hidden))

    def _forward(self, *, keeps: bool) -> Iterator[Op]:
        yield Call("final_norm", (INPUT, NORM), (self._tensor(HIDDEN, self._tokens, self._hidden),))
        for i in range(self.chunks.count):
            logits = self._tensor(f"logits {i}", self._tokens, self.chunks.rows)
            results = logits, self._per_token(largest(i)), self._per_token(sums(i))
            yield Call("chunk_forward", (HIDDEN, chunk(i), *self._bias(i)), results)
            yield Download(sums(i))
            yield Download(largest(i))
            if not keeps:
                yield Free((logits.name,))
        yield Download(HIDDEN, keeps=keeps)

    def _bias(self, i: int) -> tuple[str, ...]:
        """What keeps padding out of a chunk."""
        if not self.chunks.padding:
            return ()
        return (BIAS if i < self.chunks.count - 1 else LAST_BIAS,)

    def _backward(self, first: bool) -> Iterator[Op]:
        yield Upload(self._per_token(LOG_SUM_EXP))
        yield Upload(self._per_token(COEFFICIENT))
        yield Upload(self._wide(0))
        for i in range(self.chunks.count):
            yield from self._backward_chunk(i, first)
        yield Free((LOG_SUM_EXP, COEFFICIENT))
        total, old = (zeros((self._hidden,)), ()) if first else (grad(NORM), (grad(NORM),))
        dhidden = self._wide(self.chunks.count).name
        results = (
            self._tensor(INPUT_GRAD, self._tokens, self._hidden),
            TensorSpec(grad(NORM), "float32", (self._hidden,)),
        )
        yield Call("final_norm_backward", (total, dhidden, INPUT, NORM), results, frees=(dhidden, HIDDEN, *old))

    def _backward_chunk(self, i: int, first: bool) -> Iterator[Op]:
        before, after, logits = self._wide(i), self._wide(i + 1), f"logits {i}"
        dlogits = self._tensor("dlogits", self._tokens, self.chunks.rows)
        yield Call("chunk_softmax_backward", (logits, LOG_SUM_EXP, COEFFICIENT), (dlogits,))
        yield Call("chunk_input_grad", (before.name, "dlogits", chunk(i)), (after,), frees=(before.name, logits))
        gradient = TensorSpec(grad(chunk(i)), "float32", (self.chunks.rows, self._hidden))
        yield from accumulate("chunk", gradient, "dlogits", HIDDEN, first)
        yield Free(("dlogits",))
