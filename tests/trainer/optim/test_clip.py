from __future__ import annotations

import itertools
import math

import pytest
import torch

from trainer.optim.clip import NonFiniteGradientError, clip_factor, global_norm
from trainer.optim.host import square_sum


@pytest.mark.parametrize("largest", [0.01, 1.0, 1e6])
def test_equals_torch(largest: float) -> None:
    """Norm and clipped gradients within 1e-6 relative: torch's own norm is a float32 sum."""
    gradients = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (3, 1000, 4097)]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(parameters, largest).item()

    norm = global_norm(square_sum(g) for g in gradients)
    assert math.isclose(norm, expected, rel_tol=1e-6)
    factor = clip_factor(norm, largest)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient * factor, parameter.grad, rtol=1e-6, atol=0)


def test_no_order_changes_a_bit() -> None:
    sums = [1e30, 1.0, 1e-30, 3e16]
    assert len({global_norm(order) for order in itertools.permutations(sums)}) == 1


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_not_finite(norm: float) -> None:
    with pytest.raises(NonFiniteGradientError, match=str(norm)):
        clip_factor(norm, 1.0)


def test_gradients_of_zero() -> None:
    assert clip_factor(global_norm([0.0, 0.0]), 1.0) == 1.0
