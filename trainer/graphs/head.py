"""The head as graphs: for one chunk of the vocabulary, logits, log-sum-exp and backward. Its norm is a layer's.

Sizes: T tokens, hidden H, C rows of the vocabulary in a chunk. "compute" is the compute dtype, of weights and
activations. The host combines the chunks' log-sum-exps and takes the target's logit and its gradient
(`trainer.model.head`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphcache.proof.inputs import ends
from trainer.graphs.layer import FLOAT, MASKED


def chunk_forward(
    hidden: Tensor,  # [T, H] compute, after the final norm
    weight: Tensor,  # [C, H] compute
    bias: Tensor
    | None = None,  # [C] compute: 0 for a token's row, a large negative number for a row that pads the chunk
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [T, C] compute; of these, the largest [T] and the sum of exp(logit - largest) [T], float32.

    The logits stay on the device for `chunk_softmax_backward`: T * C items, where a second product costs H times that.
    """
    logits = hidden @ weight.t()
    if bias is not None:
        logits = logits + bias
    wide = logits.to(FLOAT)
    largest = wide.amax(-1)
    return logits, largest, torch.exp(wide - largest[:, None]).sum(-1)


def example_chunk_forward(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Arguments for a proof: the largest logits of the tokens lie at the ends of parts of the vocabulary, so that a
    part that is left out, or looked at twice, shows. A bias of 0, or one that pads."""
    hidden, weight = (tensor.float() for tensor in tensors[:2])
    longest = weight.norm(dim=-1).max()
    # Largest logits from 2^-6 to 2^3: of small ones all terms of a sum of exponentials show, of large ones the largest.
    size = torch.exp2(torch.arange(len(hidden)) % 10 - 6.0)[:, None]
    unit = hidden / hidden.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    hidden = (unit * size / (2 * longest)).to(tensors[0].dtype)
    tokens = unit.norm(dim=-1).nonzero().flatten()
    places = torch.tensor(ends(len(weight)))
    chosen = places[(torch.arange(len(tokens)) + number * len(tokens)) % len(places)]
    # By Cauchy and Schwarz no other row of the weight outdoes one of twice the length in the token's own direction.
    weight[chosen] = unit[tokens] * 2 * longest
    biases = [torch.where(bias > 0.5, MASKED, 0.0).to(bias.dtype) for bias in tensors[2:]]
    return [hidden, weight.to(tensors[1].dtype), *biases]


def example_chunk_softmax_backward(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Arguments for a proof: log-sum-exps that are of at least these logits."""
    del number
    logits, more, coefficient = tensors
    return [logits, logits.to(FLOAT).logsumexp(-1) + more.abs(), coefficient]


def chunk_softmax_backward(
    logits: Tensor,  # [T, C] compute, of chunk_forward
    log_sum_exp: Tensor,  # [T] float32, over the whole vocabulary
    coefficient: Tensor,  # [T] float32: the loss's derivative by this token's log-sum-exp, 0 for a masked token
) -> Tensor:
    """The softmax part of the gradient of the logits, [T, C] compute (0 for padding); the target's is the host's."""
    probabilities = torch.exp(logits.to(FLOAT) - log_sum_exp[:, None])
    return (probabilities * coefficient[:, None]).to(logits.dtype)


def chunk_input_grad(
    dhidden: Tensor,  # [T, H] float32: the chunks' sum so far
    dlogits: Tensor,  # [T, C] compute
    weight: Tensor,  # [C, H] compute
) -> Tensor:
    """dhidden with this chunk's part added, [T, H] float32."""
    return dhidden + (dlogits @ weight).to(FLOAT)
