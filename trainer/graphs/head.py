"""The head as graphs: for one chunk of the vocabulary, logits, log-sum-exp and backward. Its norm is a layer's.

Sizes: T tokens, hidden H, C rows of the vocabulary in a chunk. "policy" is the dtype of weights and activations. The
host combines the chunks' log-sum-exps and takes the target's logit and its gradient (`trainer.model.head`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.graphs.layer import FLOAT


def chunk_forward(
    hidden: Tensor,  # [T, H] policy, after the final norm
    weight: Tensor,  # [C, H] policy
    bias: Tensor
    | None = None,  # [C] policy: 0 for a token's row, a large negative number for a row that pads the chunk
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [T, C] policy; of these, the largest [T] and the sum of exp(logit - largest) [T], float32.

    The logits stay on the device for `chunk_softmax_backward`: T * C items, where a second product costs H times that.
    """
    logits = hidden @ weight.t()
    if bias is not None:
        logits = logits + bias
    wide = logits.to(FLOAT)
    largest = wide.amax(-1)
    return logits, largest, torch.exp(wide - largest[:, None]).sum(-1)


def chunk_softmax_backward(
    logits: Tensor,  # [T, C] policy, of chunk_forward
    log_sum_exp: Tensor,  # [T] float32, over the whole vocabulary
    coefficient: Tensor,  # [T] float32: the loss's derivative by this token's log-sum-exp, 0 for a masked token
) -> Tensor:
    """The softmax part of the gradient of the logits, [T, C] policy (0 for padding); the target's is the host's."""
    probabilities = torch.exp(logits.to(FLOAT) - log_sum_exp[:, None])
    return (probabilities * coefficient[:, None]).to(logits.dtype)


def chunk_input_grad(
    dhidden: Tensor,  # [T, H] float32: the chunks' sum so far
    dlogits: Tensor,  # [T, C] policy
    weight: Tensor,  # [C, H] policy
) -> Tensor:
    """dhidden with this chunk's part added, [T, H] float32."""
    return dhidden + (dlogits @ weight).to(FLOAT)
