"""The parts of one decoder layer, forward and backward, as graphs. Written by hand: no autograd inside.

Sizes: B sequences of S tokens (T = B * S), hidden H, n query heads in k groups (n = k * g) of width d, so h = n + 2k
heads with those of keys and values, MLP width I.
"compute" is the compute dtype, of weights and activations: bfloat16 or float32. Norms, softmax and SwiGLU work in
float32 and round once; weight gradients add into float32 accumulators. Weights are [out, in] as in the checkpoint.

The split into parts follows what the vendor's compiler takes quickly (docs/compiler-workarounds.md). The same lines run
eagerly on the cpu backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT = torch.float32
# Added to what may not be seen: exp of it is 0 in float32, and sums of it stay finite.
MASKED = -1.0e30


def rms_norm(
    x: Tensor,  # [T, H] compute
    norm: Tensor,  # [H] compute
    *,
    eps: float,
) -> Tensor:
    """Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467: what a block's products take, [T, H] compute."""
    wide = x.to(FLOAT)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * scale * norm.to(FLOAT)).to(x.dtype)


def linear(
    x: Tensor,  # [T, in] compute
    weight: Tensor,  # [out, in] compute
    bias: Tensor | None = None,  # [out] compute
) -> Tensor:
    """x @ weight^T + bias, [T, out] compute."""
    y = x @ weight.t()
    return y if bias is None else y + bias


def linear_residual(
    x: Tensor,  # [T, in] compute
    weight: Tensor,  # [H, in] compute
    residual: Tensor,  # [T, H] compute
) -> Tensor:
    """residual + x @ weight^T, [T, H] compute: the end of a block."""
    return residual + x @ weight.t()


def rotate(
    x: Tensor,  # [T*h, d] compute: the heads of q, k and v, token by token
    cos: Tensor,  # [T*h, d] float32: for q times 1/sqrt(d), so that no other part scales the scores; for v 1
    sin: Tensor,  # [T*h, d] float32: the same, negative in the first half of d; for v 0
) -> Tensor:
    """Rotary embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), q scaled, v as it is: [T*h, d] compute.

    Its own backward: with the sines negated it takes the gradients of the results to those of x.
    """
    half = x.shape[-1] // 2
    swapped = torch.cat((x[:, half:], x[:, :half]), dim=-1)
    return (x.to(FLOAT) * cos + swapped.to(FLOAT) * sin).to(x.dtype)


def split_heads(
    rows: Tensor,  # [T*h, d] compute: the heads of q, k and v, token by token
    *,
    q_width: int,
    kv_width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, n*d], k and v [T, k*d], compute. Copies: the compiler returns no views."""
    heads = rows.view(-1, q_width + 2 * kv_width)
    q, k, v = heads[:, :q_width], heads[:, q_width : q_width + kv_width], heads[:, q_width + kv_width :]
    return q.clone(), k.clone(), v.clone()


def join_heads(
    q: Tensor,  # [T, n*d] compute
    k: Tensor,  # [T, k*d] compute
    v: Tensor,  # [T, k*d] compute
) -> Tensor:
    """The heads of q, k and v side by side again, [T, h*d] compute."""
    return torch.cat((q, k, v), 1)


def scores(
    q: Tensor,  # [T*n, d] compute, rotated and scaled
    k: Tensor,  # [T*k, d] compute, rotated
    *,
    heads: int,
    kv_heads: int,
    sequence: int,
) -> Tensor:
    """q @ k^T, [B*k, g*S, S] compute: below one another the queries of the heads that share a key head.

    Of the gradient of `attend`'s result, and v: the gradient of the probabilities.
    """
    return _grouped(q, heads, kv_heads, sequence) @ _by_head(k, kv_heads, sequence).transpose(1, 2)


def softmax(
    scores: Tensor,  # [B*k, g*S, S] compute
    mask: Tensor,  # [g*S, S] float32: 0 where a token may look, a large negative number where not
) -> Tensor:
    """Attention's probabilities [B*k, g*S, S] compute."""
    return torch.softmax(scores.to(FLOAT) + mask, dim=-1).to(scores.dtype)


def example_softmax(tensors: list[Tensor], number: int) -> list[Tensor]:
    """Arguments for a proof: a causal mask with more holes, in every other row."""
    del number
    scores, mask = tensors
    rows, sequence = mask.shape
    unseen = torch.ones(sequence, sequence, dtype=torch.bool).triu(1).repeat(rows // sequence, 1)
    unseen[::2] |= mask[::2] < 0
    own = torch.arange(rows) % sequence
    unseen[torch.arange(rows), own] = False
    return [scores, torch.where(unseen, MASKED, 0.0)]


def attend(
    probabilities: Tensor,  # [B*k, g*S, S] compute
    v: Tensor,  # [T*k, d] compute
    *,
    heads: int,
    kv_heads: int,
    sequence: int,
) -> Tensor:
    """The heads' outputs side by side, [T, n*d] compute.

    Of the gradient of the scores, and k: the gradient of q.
    """
    return _ungrouped(probabilities @ _by_head(v, kv_heads, sequence), heads, sequence)


def softmax_backward(
    dprobabilities: Tensor,  # [B*k, g*S, S] compute
    probabilities: Tensor,  # [B*k, g*S, S] compute
) -> Tensor:
    """Gradient of `softmax`'s scores, [B*k, g*S, S] compute."""
    wide, dwide = probabilities.to(FLOAT), dprobabilities.to(FLOAT)
    mean = (dwide * wide).sum(-1, keepdim=True)
    return ((dwide - mean) * wide).to(probabilities.dtype)


def attend_backward(
    weights: Tensor,  # [B*k, g*S, S] compute: how much of a key's or value's row each query took
    rows: Tensor,  # [T*n, d] compute: of each query
    *,
    heads: int,
    kv_heads: int,
    sequence: int,
) -> Tensor:
    """weights^T @ rows, [T, k*d] compute: what the queries of a group say about each key or value.

    The gradient of v from `softmax`'s result and that of `attend`'s; the gradient of k from that of the scores and q.
    """
    return _ungrouped(weights.transpose(1, 2) @ _grouped(rows, heads, kv_heads, sequence), kv_heads, sequence)


def _grouped(x: Tensor, heads: int, kv_heads: int, sequence: int) -> Tensor:
    """[T*n, d] -> [B*k, g*S, d]: the queries that share a key head, one under another."""
    dim = x.shape[-1]
    by_head = x.reshape(-1, sequence, heads, dim).transpose(1, 2)
    return by_head.reshape(-1, heads // kv_heads * sequence, dim)


def _by_head(x: Tensor, kv_heads: int, sequence: int) -> Tensor:
    """[T*k, d] -> [B*k, S, d]"""
    return _grouped(x, kv_heads, kv_heads, sequence)


def _ungrouped(x: Tensor, heads: int, sequence: int) -> Tensor:
    """[B*k, g*S, d] -> [T, n*d], what `_grouped` undid."""
    dim = x.shape[-1]
    return x.reshape(-1, heads, sequence, dim).transpose(1, 2).reshape(-1, heads * dim)


def swiglu(
    gate_up: Tensor,  # [T, 2*I] compute: gate and up side by side
) -> Tensor:
    """Shazeer 2020, https://arxiv.org/abs/2002.05202: silu(gate) * up, [T, I] compute."""
    gate, up = gate_up.to(FLOAT).chunk(2, 1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def swiglu_backward(
    dproduct: Tensor,  # [T, I] compute
    gate_up: Tensor,  # [T, 2*I] compute
) -> tuple[Tensor, Tensor]:
    """Gradient of gate_up [T, 2*I], and swiglu's result [T, I], which the gradient of down needs; compute."""
    dwide, (gate, up) = dproduct.to(FLOAT), gate_up.to(FLOAT).chunk(2, 1)
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    dgate = dwide * up * (sigmoid + silu * (1.0 - sigmoid))
    return torch.cat((dgate.to(gate_up.dtype), (dwide * silu).to(gate_up.dtype)), 1), (silu * up).to(gate_up.dtype)


def input_grad(
    dy: Tensor,  # [T, out] compute
    weight: Tensor,  # [out, in] compute
) -> Tensor:
    """Gradient of a linear part's input, [T, in] compute."""
    return dy @ weight


def weight_grad(
    dy: Tensor,  # [T, out] compute
    x: Tensor,  # [T, in] compute
) -> Tensor:
    """dy^T @ x, [out, in] float32: a weight's gradient in one micro-batch."""
    return (dy.t() @ x).to(FLOAT)


def add(
    total: Tensor,  # [out, in] float32
    grad: Tensor,  # [out, in] float32
) -> Tensor:
    """A weight's gradient over one micro-batch more, [out, in] float32."""
    return total + grad


def bias_grad(
    total: Tensor,  # [out] float32
    dy: Tensor,  # [T, out] compute
) -> Tensor:
    """A bias's gradient over one micro-batch more, [out] float32."""
    return total + dy.to(FLOAT).sum(0)


def norm_backward(
    total: Tensor,  # [H] float32
    dnormed: Tensor,  # [T, H] compute or float32
    x: Tensor,  # [T, H] compute: the norm's input
    norm: Tensor,  # [H] compute
    residual: Tensor | None = None,  # [T, H] compute: gradient that reaches x beside the norm
    *,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of x [T, H] compute, and the norm weight's over the micro-batches so far [H] float32."""
    wide, dwide = x.to(FLOAT), dnormed.to(FLOAT)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    unit = wide * scale
    dunit = dwide * norm.to(FLOAT)
    dx = scale * (dunit - unit * (dunit * unit).mean(-1, keepdim=True))
    if residual is not None:
        dx = residual.to(FLOAT) + dx
    return dx.to(x.dtype), total + (dwide * unit).sum(0)
