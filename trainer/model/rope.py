"""Rotary tables on the host, as `transformers` computes them (float32), in the layout that the graphs take."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.model.config import ModelConfig, RopeScaling

# Added to the scores of keys that a query may not see: exp of it is 0 in float32, and sums of it stay finite.
MASKED = -1.0e30


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


def rotate_tables(config: ModelConfig, sequence: int, micro_batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q_cos, q_sin, k_cos, k_sin for `rotate`: a row for each token and head, q's scaled by 1/sqrt(head_dim)."""
    cos, sin = rotation(config, sequence)
    scale = config.head_dim**-0.5

    def rows(table: Tensor, heads: int) -> Tensor:
        return table.repeat_interleave(heads, 0).repeat(micro_batch, 1).contiguous()

    q, k = config.heads, config.kv_heads
    return rows(cos * scale, q), rows(sin * scale, q), rows(cos, k), rows(sin, k)


def causal_mask(sequence: int) -> Tensor:
    """What is added to the scores: 0 on and below the diagonal, MASKED above, [sequence, sequence] float32."""
    return torch.full((sequence, sequence), MASKED).triu(1)
