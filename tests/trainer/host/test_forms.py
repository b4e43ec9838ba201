"""Every graph that has a form of its own on the host, against its own lines run eagerly by torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphcache.graph import Graph, TensorSpec
from trainer.graphs import head, layer, tiles
from trainer.host import forms, row_form
from trainer.host.forms import BLOCK_ROWS, ROWWISE, host_form
from trainer.host.lanes import HostFormError
from trainer.host.row_form import RowForm, threads_are_there
from trainer.host.trace import Input

DTYPES = [torch.bfloat16, torch.float32]
FLOAT = torch.float32
Case = tuple[tuple[Tensor, ...], dict[str, Any]]


def normal(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(shape).to(dtype)


def cases(rows: int, width: int, groups: int, dtype: torch.dtype) -> dict[str, Case]:
    """Arguments of each graph by its name, of sizes that fit each other; `width` is any, and even where halves are."""

    def tensor(*shape: int) -> Tensor:
        return normal(*shape, dtype=dtype)

    mask = torch.where(torch.rand(rows, width) > 0.5, 0.0, -1e30)
    mask[:, 0] = 0.0
    eps = {"eps": 1e-5}
    return {
        "layer:rms_norm": ((tensor(rows, width), tensor(width)), eps),
        "layer:rotate": ((tensor(rows, 2 * width), normal(rows, 2 * width), normal(rows, 2 * width)), {}),
        "layer:softmax": ((tensor(groups, rows, width), mask), {}),
        "layer:softmax_backward": ((tensor(groups, rows, width), tensor(groups, rows, width).abs()), {}),
        "layer:swiglu": ((tensor(rows, 2 * width),), {}),
        "layer:swiglu_backward": ((tensor(rows, width), tensor(rows, 2 * width)), {}),
        "layer:norm_backward": (
            (normal(width), tensor(rows, width), tensor(rows, width), tensor(width), tensor(rows, width)),
            eps,
        ),
        "head:chunk_forward": ((tensor(rows, 8), tensor(width, 8)), {}),
        "head:chunk_softmax_backward": ((tensor(rows, width), normal(rows) + 3, normal(rows)), {}),
    }


def graph_of(name: str, case: Case) -> Graph:
    specs = tuple(TensorSpec("x", str(a.dtype).removeprefix("torch."), tuple(a.shape)) for a in case[0])
    return Graph(name, "layer", f"trainer.graphs.{name}", specs, constants=case[1])


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def eager(name: str, case: Case) -> tuple[Tensor, ...]:
    module, _, function = name.partition(":")
    return as_tuple(getattr({"layer": layer, "head": head}[module], function)(*case[0], **case[1]))


def check(name: str, case: Case) -> None:
    """Within some units in the last place of the result's largest element: sums are in another order."""
    ours = host_form(graph_of(name, case))(*case[0])
    for mine, theirs in zip(as_tuple(ours), eager(name, case), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.is_contiguous()
        tolerance = (2**-7 if theirs.dtype == torch.bfloat16 else 2e-6) * theirs.float().abs().max().item()
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


def test_these_are_all() -> None:
    assert {f"trainer.graphs.{name}" for name in cases(2, 2, 1, FLOAT)} == ROWWISE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", cases(2, 2, 1, FLOAT))
@pytest.mark.parametrize(("rows", "width", "groups"), [(1, 1, 1), (3, 31, 2), (5, 32, 1), (7, 100, 3), (64, 257, 2)])
def test_equals_the_graph(rows: int, width: int, groups: int, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    check(name, cases(rows, width, groups, dtype)[name])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 140), st.integers(1, 4), st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_equals_the_graph_at_any_size(rows: int, width: int, groups: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    for name, case in cases(rows, width, groups, dtype).items():
        check(name, case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arguments_that_may_be_absent_or_of_another_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    (total, _, x, norm, _), eps = cases(6, 40, 1, dtype)["layer:norm_backward"]
    check("layer:norm_backward", ((total, normal(6, 40), x, norm), eps))
    bias = torch.zeros(50, dtype=dtype)
    bias[30:] = -1e9
    check("head:chunk_forward", ((normal(6, 8, dtype=dtype), normal(50, 8, dtype=dtype), bias), {}))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", cases(2, 2, 1, FLOAT))
def test_the_number_of_threads_changes_no_bit(name: str, threads: Callable[[int], None]) -> None:
    torch.manual_seed(1)
    case = cases(37, 70, 2, torch.bfloat16)[name]
    found = []
    for count in (1, 2, 5, 64):
        threads(count)
        found.append(as_tuple(host_form(graph_of(name, case))(*case[0])))
    # The gradient of a norm's weight is added up over rows by torch.
    checked = 1 if name == "layer:norm_backward" else None
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0][:checked], others[:checked], strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", cases(2, 2, 1, FLOAT))
def test_what_is_not_finite_stays_in_its_row(name: str, bad: float, dtype: torch.dtype) -> None:
    """Of the first argument of the largest rank; a loss that is not a number must not become one on the way."""
    torch.manual_seed(2)
    case = cases(6, 40, 1, dtype)[name]
    place = next(i for i, a in enumerate(case[0]) if a.dim() > 1)
    case[0][place].view(-1, case[0][place].shape[-1])[2, 3] = bad
    for mine, theirs in zip(as_tuple(host_form(graph_of(name, case))(*case[0])), eager(name, case), strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())


def test_a_nan_is_the_maximum_of_its_row() -> None:
    """As torch's amax has it: the log-sum-exp of a row with a NaN is one."""
    case = cases(3, 40, 1, FLOAT)["head:chunk_forward"]
    case[0][0][1] = math.nan
    _, largest, total = host_form(graph_of("head:chunk_forward", case))(*case[0])
    assert largest.isnan().tolist() == total.isnan().tolist() == [False, True, False]


def test_without_torchs_threads_the_function_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_form, "TEAM", "no_such_function_of_openmp")
    case = cases(6, 40, 1, torch.bfloat16)["layer:swiglu"]
    form = host_form(graph_of("layer:swiglu", case))
    assert not isinstance(form, RowForm)
    assert torch.equal(form(*case[0]), eager("layer:swiglu", case)[0])


def test_this_machine_has_torchs_threads() -> None:
    """Else the tests above compare eager torch with itself."""
    assert threads_are_there()
    case = cases(6, 40, 1, torch.bfloat16)["layer:swiglu"]
    assert isinstance(host_form(graph_of("layer:swiglu", case)), RowForm)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.mT,
        lambda x: x[:, :, :39],
        lambda x: x[:, :39],
        lambda x: x.view(40, 1, 40),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to("meta"),
    ],
    ids=["not row-major", "fewer columns", "fewer rows", "rows of another shape", "another dtype", "another device"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_an_argument_that_the_code_was_not_made_for_is_an_error(place: int, other: Callable[[Tensor], Tensor]) -> None:
    case = cases(40, 40, 1, FLOAT)["layer:softmax_backward"]
    args = list(case[0])
    args[place] = other(args[place])
    with pytest.raises(ValueError, match=rf"argument {place} is torch\.\w+ .*: traced was torch.float32 \(1, 40, 40\)"):
        host_form(graph_of("layer:softmax_backward", case))(*args)


def test_factors_that_the_code_was_not_made_for_are_an_error() -> None:
    case = cases(6, 40, 1, FLOAT)["head:chunk_forward"]
    form = host_form(graph_of("head:chunk_forward", case))
    with pytest.raises(ValueError, match=r"argument \(0, 1\) is torch.float32 \(6, 39\)"):
        form(case[0][0], case[0][1][:39])


def bits(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(torch.int32).view(FLOAT)


def exponentials(x: Tensor) -> Tensor:
    (found,) = RowForm((torch.exp(Input((1, len(x)), FLOAT)),))(x[None])
    return found[0]


def test_exponential_of_numbers_of_every_size() -> None:
    """Against float64, in units of the result's last place; below the normal float32 numbers 0 or one of them."""
    every = bits(list(range(-(2**31), 2**31, 50_021)))
    x = every[every.isfinite()]
    found, exact = exponentials(x).double(), x.double().exp()
    normal_ = (exact >= torch.finfo(FLOAT).tiny) & (exact < torch.finfo(FLOAT).max)
    unit = torch.exp2(exact[normal_].log2().floor() - 23)
    assert ((found - exact)[normal_].abs() / unit).max() < 1.0
    assert found[exact > torch.finfo(FLOAT).max].isinf().all()
    assert (found[exact < torch.finfo(FLOAT).tiny] <= torch.finfo(FLOAT).tiny).all()
    assert found[x < -87.4].count_nonzero() == 0


def test_exponential_at_the_edges() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 88.72, 88.73, 1e30, -1e30])
    found = exponentials(x)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2].item() == pytest.approx(math.e, rel=1e-7)
    assert found[3:5].tolist() == [math.inf, 0.0]
    assert found[5].isnan()
    assert found[6].isfinite()
    assert found[7:].tolist() == [math.inf, math.inf, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_in_blocks_is_the_whole_one(dtype: torch.dtype) -> None:
    """But for the order of sums, which a library of products may choose by the number of rows."""
    torch.manual_seed(3)
    for out in (1, 300, BLOCK_ROWS, 2 * BLOCK_ROWS + 77):
        args = normal(64, out, dtype=dtype), normal(64, 48, dtype=dtype)
        found = host_form(graph_of("layer:weight_grad", (args, {})))(*args)
        torch.testing.assert_close(
            found, layer.weight_grad(*args), rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-4
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_cast_has_the_same_bits_in_memory_of_its_own(dtype: str) -> None:
    total = normal(50_000)
    found = host_form(graph_of("tiles:cast", ((total,), {"dtype": dtype})))(total)
    assert torch.equal(found, tiles.cast(total, dtype=dtype))
    assert found.data_ptr() != total.data_ptr()


def test_a_graph_that_has_no_form_says_how_to_go_on(monkeypatch):
    graph = Graph("odd", "layer", f"{__name__}:odd", (TensorSpec("x", "float32", (4, 8)),))
    monkeypatch.setattr(forms, "ROWWISE", forms.ROWWISE | {graph.function})
    with pytest.raises(HostFormError, match="test_forms:odd has no form for the host") as found:
        host_form(graph)
    assert "ROWWISE" in found.value.hint


def odd(x):
    return x.cumsum(-1)
