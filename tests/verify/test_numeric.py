"""Accuracy figures against values worked out by hand, and the verdicts that follow from them. No vendor is needed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from graphcache.build.check import relative_error  # noqa: E402
from graphcache.export.example_inputs import example  # noqa: E402
from graphcache.verify import numeric as numeric_module  # noqa: E402
from graphcache.verify.numeric import _ulp, evaluate, evaluate_wide, numeric  # noqa: E402
from tests.support.programs import graph_of  # noqa: E402
from trainer.catalogs.adamw import graph as adamw_graph  # noqa: E402

GRAPH = graph_of("scaled_sum", shape=(256,))


class FakeExecutor:
    """Stands for the vendor's: eager torch, plus what `damage` does to its results."""

    damage = staticmethod(lambda results: results)

    @classmethod
    def of(cls, artifact: Any) -> FakeExecutor:
        return cls()

    def execute(self, inputs: Any) -> Any:
        return type(self).damage(evaluate(GRAPH, inputs))


def run(monkeypatch: pytest.MonkeyPatch, damage: Any = lambda results: results) -> Any:
    monkeypatch.setattr(numeric_module, "HostExecutor", FakeExecutor)
    monkeypatch.setattr(FakeExecutor, "damage", staticmethod(damage))
    return numeric(GRAPH, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    values = torch.tensor([1.0, 1.5, 2.0, 3.99, 0.5, -1.0, 1024.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, 2.0, 2.0, 0.5, 1.0, 1024.0], dtype=torch.float64) * eps
    assert torch.equal(_ulp(values, dtype), expected)


def test_an_ulp_at_zero_is_that_of_the_smallest_normal_number() -> None:
    smallest = torch.finfo(torch.float32).smallest_normal
    assert _ulp(torch.zeros(1, dtype=torch.float64), torch.float32).item() == smallest * 2**-23


def test_the_reference_is_not_rounded_by_casts_inside_the_function() -> None:
    graph = graph_of("rounds_through_half")
    inputs = [torch.full((4,), 1.00390625 / 3), torch.zeros(4)]
    (wide,) = evaluate_wide(graph, inputs)
    assert wide.dtype == torch.float64
    assert torch.equal(wide, inputs[0].double())
    assert not torch.equal(evaluate(graph, inputs)[0], inputs[0])


def test_eager_torch_itself_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch)
    assert found.passed
    (result,) = found.results
    assert result.max_ulps == result.eager_ulps <= 1.0


@pytest.mark.parametrize(
    "damage",
    [
        lambda results: [r.roll(1) for r in results],
        lambda results: [r * (1 + 1e-5) for r in results],
        lambda results: [torch.where(torch.arange(256) == 17, torch.nan, r) for r in results],
        lambda results: [torch.where(torch.arange(256) == 17, r + 1e-3, r) for r in results],
    ],
    ids=["moved", "scaled", "one NaN", "one wrong element"],
)
def test_wrong_values_fail(monkeypatch: pytest.MonkeyPatch, damage: Any) -> None:
    assert not run(monkeypatch, damage).passed


def test_another_shape_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, lambda results: [r.reshape(16, 16) for r in results])
    assert not found.passed
    assert "(16, 16)" in found.problem


def test_relative_error_of_known_vectors() -> None:
    reference = torch.tensor([3.0, 4.0])
    assert relative_error(torch.tensor([3.0, 4.5]), reference) == pytest.approx(0.1)
    assert relative_error(reference, reference) == 0
    assert relative_error(torch.tensor([3.0, math.inf]), reference) == math.inf
    assert relative_error(reference.double(), reference) == math.inf
    infinite = torch.tensor([3.0, math.inf])
    assert relative_error(infinite, infinite) == 0


def test_examples_are_the_same_everywhere_and_ordinary() -> None:
    graph = adamw_graph(64, "bfloat16")
    first, second = example(graph), example(graph)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [(t.dtype, tuple(t.shape)) for t in first] == [(getattr(torch, a.dtype), a.shape) for a in graph.args]
    assert all(t.min() >= 0.25 and t.max() <= 1 for t in first[:4])
    beta1, one_minus_beta1 = first[5].item(), first[6].item()
    assert beta1 + one_minus_beta1 == pytest.approx(1)


def test_adamw_is_accurate_to_a_few_ulps_in_its_own_dtypes() -> None:
    graph = adamw_graph(4096, "bfloat16")
    inputs = example(graph)
    for eager, exact, allowed in zip(
        evaluate(graph, inputs), evaluate_wide(graph, inputs), (2.0, 2.0, 2.0, 0.6), strict=True
    ):
        ulps = ((eager.double() - exact).abs() / _ulp(exact, eager.dtype)).max().item()
        assert ulps <= allowed
