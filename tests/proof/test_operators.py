"""Operators of other projects: right results are proven in both dtypes, results that are slightly wrong are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from graphcache.graph import Graph, TensorSpec
from graphcache.proof.check import prove
from tests.proof import operators

SHAPE = (32, 64)
SHAPES = {"relu_layer": (SHAPE, (48, 64)), "relu_gradient": (SHAPE, (32, 48), (64, 48))}
NAMES = sorted(
    name for name, value in vars(operators).items() if getattr(value, "__module__", "") == operators.__name__
)
DTYPES = ("float32", "bfloat16")


def graph(name: str, dtype: str) -> Graph:
    specs = tuple(TensorSpec(f"x{i}", dtype, shape) for i, shape in enumerate(SHAPES.get(name, (SHAPE, SHAPE))))
    return Graph(name, "test", f"tests.proof.operators:{name}", specs, settings={"implicit-casts": "off"})


def state(name: str, dtype: str, run: Callable[..., Tensor]) -> str:
    found = prove(graph(name, dtype), lambda inputs: [run(*inputs)], sets=2)
    return f"{found.state} {found.reason}" if found.state == "unproven" else found.state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_what_torch_gives_is_proven(name: str, dtype: str) -> None:
    assert state(name, dtype, getattr(operators, name)) == "proven"


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_gives_in_float64_is_proven(name: str) -> None:
    function = getattr(operators, name)
    assert state(name, "bfloat16", lambda *x: function(*(t.double() for t in x)).bfloat16()) == "proven"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "fault",
    [
        lambda r: r.roll(1, 0),
        lambda r: -r,
        lambda r: torch.cat((r[:, :-1], 2 * r[:, -1:]), 1),
        lambda r: torch.cat((r[:-1], torch.zeros_like(r[-1:]))),
    ],
    ids=["rows moved", "sign", "last column doubled", "last row left out"],
)
def test_a_wrong_result_is_disproven(name: str, dtype: str, fault: Callable[[Tensor], Tensor]) -> None:
    assert state(name, dtype, lambda *x: fault(getattr(operators, name)(*x))) == "disproven"


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_operator_for_another_is_disproven(dtype: str) -> None:
    wrong = {
        "relu_layer": lambda x, w: (x @ w.t()).abs(),
        "relu_gradient": lambda error, inner, w: torch.where(inner < 0, error @ w, 0.0),
        "tanh": lambda x, y: torch.sigmoid(x + y),
        "silu": lambda x, y: torch.relu(x) * y,
        "log_softmax": lambda x, y: torch.softmax(x + y, -1),
        "largest_and_smallest": lambda x, y: x - y,
    }
    for name, run in wrong.items():
        assert state(name, dtype, run) == "disproven", name
