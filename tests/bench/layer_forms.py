"""Parts of a layer written in other ways: what `tests.bench.compile_forms` compiles. Sizes are SmolLM2-135M's.

Each function is used, or stands for a way that docs/compiler-workarounds.md advises against. S tokens of one sequence,
n query heads and k key heads of width d, h = n + 2k, hidden H, MLP width I; bfloat16 unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec
from trainer.catalogs.layer import PRODUCTS, ROTATION, ROWWISE
from trainer.graphs import layer

S, N, K, D, H, MLP = 128, 9, 3, 64, 576, 1536
ALL = N + 2 * K
HEADS = {"heads": N, "kv_heads": K, "sequence": S}
WIDTHS = {"q_width": N * D, "kv_width": K * D}
BF, F32 = "bfloat16", "float32"


def rotate_by_head(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[h, S, d]"""
    half = D // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x.to(torch.float32) * cos + swapped.to(torch.float32) * sin).to(x.dtype)


def rotate_and_split(rows: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return layer.split_heads(layer.rotate(rows, cos, sin), **WIDTHS)


def split_columns(heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of [S, h*d], where `split_heads` takes the same memory as [S*h, d]."""
    q, k, v = heads[:, : N * D], heads[:, N * D : (N + K) * D], heads[:, (N + K) * D :]
    return q.clone(), k.clone(), v.clone()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    probabilities = layer.softmax(layer.scores(q, k, **HEADS), mask)
    return layer.attend(probabilities, v, **HEADS), probabilities


def probabilities(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return layer.softmax(layer.scores(q, k, **HEADS), mask)


def qkv_three(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ q.t(), x @ k.t(), x @ v.t()


def gate_up_two(x: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x @ gate.t(), x @ up.t()


def input_grad_two(dgate: Tensor, gate: Tensor, dup: Tensor, up: Tensor) -> Tensor:
    return dgate @ gate + dup @ up


def swiglu_down(gate_up: Tensor, down: Tensor, residual: Tensor) -> Tensor:
    return layer.linear_residual(layer.swiglu(gate_up), down, residual)


def swiglu_down_backward(dy: Tensor, gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    return layer.swiglu_backward(layer.input_grad(dy, down), gate_up)


def merge_heads(x: Tensor) -> Tensor:
    """[n, S, d] -> [S, n*d], a transposition and nothing else."""
    return x.transpose(0, 1).reshape(S, N * D)


def attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dscores = layer.softmax_backward(layer.scores(dout, v, **HEADS), probabilities)
    return (
        layer.attend(dscores, k, **HEADS),
        layer.attend_backward(dscores, q, **HEADS),
        layer.attend_backward(probabilities, dout, **HEADS),
    )


Spec = tuple[tuple[int, ...], str]
ROWS, COLUMNS, TABLE = ((S * ALL, D), BF), ((S, ALL * D), BF), ((S * ALL, D), F32)
Q_ROWS, K_ROWS = ((S * N, D), BF), ((S * K, D), BF)
MASK, PROBABILITIES = ((N // K * S, S), F32), ((K, N // K * S, S), BF)
X, GATE, DOWN, GATED = ((S, H), BF), ((MLP, H), BF), ((H, MLP), BF), ((S, MLP), BF)
WHOLE, BOTH = ((2 * MLP, H), BF), ((S, 2 * MLP), BF)
Q_WEIGHT, KV_WEIGHT, QKV_WEIGHT = ((N * D, H), BF), ((K * D, H), BF), ((ALL * D, H), BF)


def form(module: str, function: str, *specs: Spec, settings: Mapping[str, str] = PRODUCTS, **constants: Any) -> Graph:
    args = tuple(TensorSpec(f"x{i}", dtype, shape) for i, (shape, dtype) in enumerate(specs))
    return Graph(function, "bench", f"{module}:{function}", args, constants=constants, settings=settings)


# Of the trainer, and of this file.
used, avoided = partial(form, layer.__name__), partial(form, __name__)

# In the order of docs/compiler-workarounds.md: what is avoided first, then what is used instead.
FORMS: dict[str, Graph] = {
    "rotate-by-head": avoided("rotate_by_head", ((ALL, S, D), BF), ((S, D), F32), ((S, D), F32), settings=ROTATION),
    "rotate-and-split": avoided("rotate_and_split", ROWS, TABLE, TABLE, settings=ROTATION),
    "rotate": used("rotate", ROWS, TABLE, TABLE, settings=ROTATION),
    "split-columns": avoided("split_columns", COLUMNS, settings=ROWWISE),
    "split": used("split_heads", ROWS, settings=ROWWISE, **WIDTHS),
    "attention": avoided("attention", Q_ROWS, K_ROWS, K_ROWS, MASK),
    "probabilities": avoided("probabilities", Q_ROWS, K_ROWS, MASK),
    "merge-heads": avoided("merge_heads", ((N, S, D), BF), settings=ROWWISE),
    "scores": used("scores", Q_ROWS, K_ROWS, **HEADS),
    "softmax": used("softmax", PROBABILITIES, MASK, settings=ROWWISE),
    "attend": used("attend", PROBABILITIES, K_ROWS, **HEADS),
    "attention-backward": avoided("attention_backward", Q_ROWS, Q_ROWS, K_ROWS, K_ROWS, PROBABILITIES),
    "softmax-backward": used("softmax_backward", PROBABILITIES, PROBABILITIES, settings=ROWWISE),
    "attend-backward": used("attend_backward", PROBABILITIES, Q_ROWS, **HEADS),
    "qkv-three": avoided("qkv_three", X, Q_WEIGHT, KV_WEIGHT, KV_WEIGHT),
    "qkv": used("linear", X, QKV_WEIGHT),
    "gate-up-two": avoided("gate_up_two", X, GATE, GATE),
    "gate-up": used("linear", X, WHOLE),
    "input-grad-two": avoided("input_grad_two", GATED, GATE, GATED, GATE),
    "input-grad": used("input_grad", BOTH, WHOLE),
    "swiglu-down": avoided("swiglu_down", BOTH, DOWN, X),
    "swiglu": used("swiglu", BOTH, settings=ROWWISE),
    "down": used("linear_residual", GATED, DOWN, X),
    "swiglu-down-backward": avoided("swiglu_down_backward", X, BOTH, DOWN),
    "swiglu-backward": used("swiglu_backward", GATED, BOTH, settings=ROWWISE),
    "down-backward": used("input_grad", X, DOWN),
}
