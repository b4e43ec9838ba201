from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest
import torch

from graphcache.errors import UsageError
from trainer.graphs.adamw import adamw
from trainer.optim.scalars import AdamSettings, StepScalars

SETTINGS = AdamSettings(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1)


def test_order_is_that_of_the_graph() -> None:
    arguments = list(inspect.signature(adamw).parameters)
    assert [f.name for f in fields(StepScalars)] == arguments[4:]


@pytest.mark.parametrize("step", [1, 2, 255, 256, 257, 258, 1000, 65537, 10_000_000])
def test_rounded_once_from_float64(step: int) -> None:
    """A step counter in bfloat16 would stand still at 256, one in float32 at 16,777,216."""
    scalars = StepScalars.at(step, 1e-3, SETTINGS, decays=True, grad_scale=0.3)
    t = np.float64(step)
    expected = np.array(
        [
            0.3, 0.9, 1 - 0.9, 0.999, 1 - 0.999,
            1e-3 / (1 - np.power(0.9, t)), 1 / np.sqrt(1 - np.power(0.999, t)), 1e-8, 1 - 1e-3 * 0.1,
        ]
    )  # fmt: skip
    assert scalars.tensor().numpy() == pytest.approx(expected.astype(np.float32), rel=1e-7)
    assert scalars.tensor().dtype == torch.float32


def test_bias_correction_moves_beyond_256() -> None:
    values = [StepScalars.at(step, 1.0, SETTINGS, decays=True).inv_sqrt_bias_correction2 for step in range(250, 270)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)


def test_decay_on_matrices_only() -> None:
    assert StepScalars.at(3, 0.01, SETTINGS, decays=True).decay == 1 - 0.01 * 0.1
    assert StepScalars.at(3, 0.01, SETTINGS, decays=False).decay == 1.0


@pytest.mark.parametrize("eps", [0.0, 1e-46, 1e-39])
def test_eps_that_a_card_flushes_to_zero(eps: float) -> None:
    with pytest.raises(UsageError, match="no normal float32"):
        AdamSettings(eps=eps)
