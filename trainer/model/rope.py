"""Rotary tables on the host, as `transformers` computes them (float32), in the layout that the graphs take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.architecture.config import ModelConfig, RopeScaling
from trainer.graphs.layer import MASKED


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Radians a token for each pair of a head's dimensions, [head_dim / 2] float32."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponent)
    return frequencies if config.rope_scaling is None else _llama3(frequencies, config.rope_scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's scaling: long wavelengths slowed by `factor`, short ones kept, a ramp between them."""
    wavelength = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    slowed = torch.where(wavelength > scaling.original_length / low, frequencies / scaling.factor, frequencies)
    smooth = (scaling.original_length / wavelength - low) / (high - low)
    ramp = (1 - smooth) * slowed / scaling.factor + smooth * slowed
    between = (wavelength >= scaling.original_length / high) & (wavelength <= scaling.original_length / low)
    return torch.where(between, ramp, slowed)


def rotation(config: ModelConfig, sequence: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for positions 0 to sequence - 1, [sequence, head_dim] float32 each.

    The sines are negative in the first half, where the rotation subtracts: see `trainer.graphs.layer.rotate`.
    """
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), inverse_frequencies(config))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate_tables(config: ModelConfig, sequence: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    """cos and sin for `rotate`, a row for each token and head: q's scaled by 1/sqrt(head_dim), v's of no rotation."""
    cos, sin = rotation(config, sequence)
    scale = config.head_dim**-0.5
    still = torch.ones_like(cos), torch.zeros_like(sin)

    def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = [q] * config.heads + [k] * config.kv_heads + [v] * config.kv_heads
        return torch.stack(heads, 1).flatten(0, 1).repeat(micro_batch, 1).contiguous()

    return rows(cos * scale, cos, still[0]), rows(sin * scale, sin, still[1])


def document_mask(sequence: int, starts: Sequence[int], group: int = 1) -> Tensor:
    """`causal_mask` of a sequence in which documents begin at `starts` too: MASKED where a query sees another one.

    Positions go on from one document to the next. Rotary attention depends on differences of positions alone, so within
    a document nothing tells that from positions that restart.
    """
    documents = torch.zeros(sequence, dtype=torch.int64)
    documents[list(starts)] = 1
    documents = documents.cumsum(0)
    others = documents[:, None] != documents
    mask = torch.full((sequence, sequence), MASKED).triu(1).masked_fill_(others, MASKED)
    return mask.repeat(group, 1)


def causal_mask(sequence: int, group: int = 1) -> Tensor:
    """What is added to scores: 0 on and below the diagonal, MASKED above, [group * sequence, sequence] float32."""
    return torch.full((sequence, sequence), MASKED).triu(1).repeat(group, 1)
