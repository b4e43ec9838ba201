"""The parts of one decoder layer, forward and backward, as graphs. Written by hand: no autograd inside.

Sizes: B sequences of S tokens (T = B * S), hidden H, n query heads in k groups (n = k * g) of width d, MLP width I.
"policy" is the dtype of weights and activations, bfloat16 or float32. Norms, softmax and SwiGLU compute in float32 and
round once; weight gradients add into float32 accumulators. Weights are [out, in] as in the checkpoint.

The split into parts follows what the vendor's compiler takes quickly (docs/compiler-workarounds.md). The same lines run
eagerly on the cpu backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT = torch.float32


def rms_norm(
    x: Tensor,  # [T, H] policy
    norm: Tensor,  # [H] policy
    *,
    eps: float,
) -> Tensor:
    """Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467: what a block's products take, [T, H] policy."""
    wide = x.to(FLOAT)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * scale * norm.to(FLOAT)).to(x.dtype)


def qkv(
    normed: Tensor,  # [T, H] policy
    q_weight: Tensor,  # [n*d, H] policy
    k_weight: Tensor,  # [k*d, H] policy
    v_weight: Tensor,  # [k*d, H] policy
    q_bias: Tensor | None = None,  # [n*d] policy; the three biases come together
    k_bias: Tensor | None = None,  # [k*d] policy
    v_bias: Tensor | None = None,  # [k*d] policy
    *,
    head_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The heads before rotation: q [T*n, d], k [T*k, d], v [T*k, d], all policy."""
    q, k, v = normed @ q_weight.t(), normed @ k_weight.t(), normed @ v_weight.t()
    if q_bias is not None and k_bias is not None and v_bias is not None:
        q, k, v = q + q_bias, k + k_bias, v + v_bias
    return q.reshape(-1, head_dim), k.reshape(-1, head_dim), v.reshape(-1, head_dim)


def rotate(
    q: Tensor,  # [T*n, d] policy
    k: Tensor,  # [T*k, d] policy
    q_cos: Tensor,  # [T*n, d] float32: cos * 1/sqrt(d), so that no other part scales the scores
    q_sin: Tensor,  # [T*n, d] float32: sin * 1/sqrt(d), negative in the first half of d
    k_cos: Tensor,  # [T*k, d] float32: cos
    k_sin: Tensor,  # [T*k, d] float32: sin, negative in the first half of d
) -> tuple[Tensor, Tensor]:
    """Rotary embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), q scaled: [T*n, d] and [T*k, d] policy.

    Its own backward: with the sines negated it takes the gradients of the results to those of q and k.
    """
    return _rotate(q, q_cos, q_sin), _rotate(k, k_cos, k_sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    swapped = torch.cat((x[:, half:], x[:, :half]), dim=-1)
    return (x.to(FLOAT) * cos + swapped.to(FLOAT) * sin).to(x.dtype)


def attention(
    q: Tensor,  # [T*n, d] policy, rotated and scaled
    k: Tensor,  # [T*k, d] policy, rotated
    v: Tensor,  # [T*k, d] policy
    mask: Tensor,  # [S, S] float32: 0 where a token may look, a large negative number where not
    *,
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor]:
    """Softmax attention: the heads' outputs [T, n*d] and the probabilities [B*k, g*S, S], both policy."""
    sequence = mask.shape[0]
    q, k, v = _grouped(q, heads, kv_heads, sequence), _by_head(k, kv_heads, sequence), _by_head(v, kv_heads, sequence)
    scores = (q @ k.transpose(1, 2)).to(FLOAT)
    scores = scores.view(-1, heads // kv_heads, sequence, sequence) + mask
    probabilities = torch.softmax(scores, dim=-1).to(q.dtype).view(k.shape[0], -1, sequence)
    return _ungrouped(probabilities @ v, heads, kv_heads, sequence), probabilities


def attention_backward(
    dout: Tensor,  # [T, n*d] policy
    q: Tensor,  # [T*n, d] policy, rotated and scaled
    k: Tensor,  # [T*k, d] policy, rotated
    v: Tensor,  # [T*k, d] policy
    probabilities: Tensor,  # [B*k, g*S, S] policy
    attended: Tensor,  # [T, n*d] policy: attention's result
    *,
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [T*n, d], k [T*k, d] (rotated ones, both) and v [T*k, d], all policy.

    A row of probabilities times their gradients sums to the product of the result and its gradient (Dao et al. 2022,
    https://arxiv.org/abs/2205.14135), which is S / d times fewer numbers.
    """
    sequence = probabilities.shape[-1]
    dim = q.shape[-1]
    q, k, v = _grouped(q, heads, kv_heads, sequence), _by_head(k, kv_heads, sequence), _by_head(v, kv_heads, sequence)
    dout, attended = (_grouped(x.reshape(-1, dim), heads, kv_heads, sequence) for x in (dout, attended))
    dv = probabilities.transpose(1, 2) @ dout
    mean = (dout.to(FLOAT) * attended.to(FLOAT)).sum(-1, keepdim=True)
    dprobabilities = (dout @ v.transpose(1, 2)).to(FLOAT)
    dscores = ((dprobabilities - mean) * probabilities.to(FLOAT)).to(q.dtype)
    dq, dk = dscores @ k, dscores.transpose(1, 2) @ q
    return (
        _ungrouped(dq, heads, kv_heads, sequence).view(-1, dim),
        _from_heads(dk, kv_heads, sequence),
        _from_heads(dv, kv_heads, sequence),
    )


def _grouped(x: Tensor, heads: int, kv_heads: int, sequence: int) -> Tensor:
    """[T*n, d] -> [B*k, g*S, d]: the queries that share a key head, one under another."""
    dim = x.shape[-1]
    by_head = x.reshape(-1, sequence, heads, dim).transpose(1, 2)
    return by_head.reshape(-1, heads // kv_heads * sequence, dim)


def _ungrouped(x: Tensor, heads: int, kv_heads: int, sequence: int) -> Tensor:
    """[B*k, g*S, d] -> [T, n*d], what `_grouped` undid."""
    dim = x.shape[-1]
    return x.reshape(-1, heads, sequence, dim).transpose(1, 2).reshape(-1, heads * dim)


def _by_head(x: Tensor, kv_heads: int, sequence: int) -> Tensor:
    """[T*k, d] -> [B*k, S, d]"""
    return _grouped(x, kv_heads, kv_heads, sequence)


def _from_heads(x: Tensor, kv_heads: int, sequence: int) -> Tensor:
    """[B*k, S, d] -> [T*k, d]"""
    dim = x.shape[-1]
    return x.reshape(-1, kv_heads, sequence, dim).transpose(1, 2).reshape(-1, dim)


def linear_residual(
    x: Tensor,  # [T, in] policy
    weight: Tensor,  # [H, in] policy
    residual: Tensor,  # [T, H] policy
) -> Tensor:
    """residual + x @ weight^T, [T, H] policy: the output projection of attention."""
    return residual + x @ weight.t()


def gate_up(
    normed: Tensor,  # [T, H] policy
    gate_weight: Tensor,  # [I, H] policy
    up_weight: Tensor,  # [I, H] policy
) -> tuple[Tensor, Tensor]:
    """Gate and up [T, I] before SwiGLU, policy."""
    return normed @ gate_weight.t(), normed @ up_weight.t()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Shazeer 2020, https://arxiv.org/abs/2002.05202: silu(gate) * up, all [T, I] policy."""
    wide = gate.to(FLOAT)
    return (wide * torch.sigmoid(wide) * up.to(FLOAT)).to(gate.dtype)


def swiglu_down(
    gate: Tensor,  # [T, I] policy
    up: Tensor,  # [T, I] policy
    down_weight: Tensor,  # [H, I] policy
    residual: Tensor,  # [T, H] policy
) -> Tensor:
    """residual + swiglu(gate, up) @ down_weight^T, [T, H] policy: the layer's result."""
    return residual + swiglu(gate, up) @ down_weight.t()


def swiglu_down_backward(
    dy: Tensor,  # [T, H] policy
    gate: Tensor,  # [T, I] policy
    up: Tensor,  # [T, I] policy
    down_weight: Tensor,  # [H, I] policy
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of gate and up, and the product that down multiplied (its gradient needs it), [T, I] policy each."""
    dproduct = (dy @ down_weight).to(FLOAT)
    wide, wide_up = gate.to(FLOAT), up.to(FLOAT)
    sigmoid = torch.sigmoid(wide)
    silu = wide * sigmoid
    dgate = dproduct * wide_up * (sigmoid + silu * (1.0 - sigmoid))
    return dgate.to(dy.dtype), (dproduct * silu).to(dy.dtype), (silu * wide_up).to(dy.dtype)


def input_grad(
    dy: Tensor,  # [T, out] policy
    weight: Tensor,  # [out, in] policy
) -> Tensor:
    """Gradient of a linear part's input, [T, in] policy."""
    return dy @ weight


def input_grad_2(da: Tensor, a: Tensor, db: Tensor, b: Tensor) -> Tensor:
    """Gradient of the input that gate and up share: da [T, I], a [I, H] and so on, policy -> [T, H] policy."""
    return da @ a + db @ b


def qkv_input_grad(
    dq: Tensor,  # [T*n, d] policy
    dk: Tensor,  # [T*k, d] policy
    dv: Tensor,  # [T*k, d] policy
    q_weight: Tensor,  # [n*d, H] policy
    k_weight: Tensor,  # [k*d, H] policy
    v_weight: Tensor,  # [k*d, H] policy
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the normed input [T, H]; dq [T, n*d], dk and dv [T, k*d] as weight_grad takes them; policy."""
    dq, dk, dv = (d.reshape(-1, w.shape[0]) for d, w in ((dq, q_weight), (dk, k_weight), (dv, v_weight)))
    return dq @ q_weight + dk @ k_weight + dv @ v_weight, dq, dk, dv


def weight_grad(
    dy: Tensor,  # [T, out] policy
    x: Tensor,  # [T, in] policy
) -> Tensor:
    """dy^T @ x, [out, in] float32: a weight's gradient in one micro-batch."""
    return (dy.t() @ x).to(FLOAT)


def add(
    total: Tensor,  # [out, in] float32
    grad: Tensor,  # [out, in] float32
) -> Tensor:
    """A weight's gradient over one micro-batch more, [out, in] float32."""
    return total + grad


def bias_grads(
    q_total: Tensor,  # [n*d] float32
    k_total: Tensor,  # [k*d] float32
    v_total: Tensor,  # [k*d] float32
    dq: Tensor,  # [T, n*d] policy
    dk: Tensor,  # [T, k*d] policy
    dv: Tensor,  # [T, k*d] policy
) -> tuple[Tensor, Tensor, Tensor]:
    """The three biases' gradients over the micro-batches so far: [n*d], [k*d], [k*d] float32."""
    return q_total + dq.to(FLOAT).sum(0), k_total + dk.to(FLOAT).sum(0), v_total + dv.to(FLOAT).sum(0)


def norm_backward(
    total: Tensor,  # [H] float32
    dnormed: Tensor,  # [T, H] policy or float32
    x: Tensor,  # [T, H] policy: the norm's input
    norm: Tensor,  # [H] policy
    residual: Tensor | None = None,  # [T, H] policy: gradient that reaches x beside the norm
    *,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of x [T, H] policy, and the norm weight's over the micro-batches so far [H] float32."""
    wide, dwide = x.to(FLOAT), dnormed.to(FLOAT)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    unit = wide * scale
    dunit = dwide * norm.to(FLOAT)
    dx = scale * (dunit - unit * (dunit * unit).mean(-1, keepdim=True))
    if residual is not None:
        dx = residual.to(FLOAT) + dx
    return dx.to(x.dtype), total + (dwide * unit).sum(0)
