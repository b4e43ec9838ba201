"""The host kernel against the graph that it is made from, run eagerly by torch: every bit."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.graphs.adamw import adamw
from trainer.optim.base import AdamState
from trainer.optim.host import adamw_, square_sum
from trainer.optim.kernel import LINE_BYTES, WIDE, assembly
from trainer.optim.scalars import AdamSettings, StepScalars

DTYPES = [torch.bfloat16, torch.float32]
# Bits of float32: NaNs of both kinds, infinities, zeros, subnormals, ties of bfloat16's rounding, the largest numbers.
EDGES = [
    0x7FC00000, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x00000001, 0x80000001,
    0x00008000, 0x00008001, 0x00018000, 0x007FFFFF, 0x00800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF,
    0xFF7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x3F800000, 0xBF800000,
]  # fmt: skip


def from_bits(bits: list[int]) -> Tensor:
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


def same_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Equal bit for bit, where a float32 NaN may have any payload."""
    if ours.dtype == torch.bfloat16:
        return torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    equal = (ours.view(torch.int32) == theirs.view(torch.int32)) | (ours.isnan() & theirs.isnan())
    return bool(equal.all())


def check(state: AdamState, grad: Tensor, scalars: Tensor, weight: Tensor | None = None) -> None:
    """Both updates of the same values give the same bits."""
    weight = torch.empty_like(grad) if weight is None else weight
    expected = adamw(state.master, state.exp_avg, state.exp_avg_sq, grad, *scalars.split(1))
    expected = [tensor.clone() for tensor in expected]
    adamw_(state, grad, weight, scalars)
    for ours, theirs in zip((state.master, state.exp_avg, state.exp_avg_sq, weight), expected, strict=True):
        assert same_bits(ours, theirs)


def random_state(elements: int, seed: int = 0) -> tuple[AdamState, Tensor]:
    """A state as it is in training, and a float32 gradient."""
    random = torch.Generator().manual_seed(seed)
    master, exp_avg, root, grad = (torch.randn(elements, generator=random) for _ in range(4))
    return AdamState(master * 0.1, exp_avg * 1e-3, (root * 1e-3).square()), grad * 1e-3


def scalars_at(step: int, **changes: float) -> Tensor:
    return StepScalars.at(step, changes.pop("lr", 1e-3), AdamSettings(), decays=True, **changes).tensor()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [0, 1, 31, 32, 33, 64, 100, 4096, 100_003])
def test_equals_the_graph(elements: int, dtype: torch.dtype) -> None:
    state, grad = random_state(elements)
    for step in (1, 2, 300):
        check(state, grad.to(dtype), scalars_at(step, grad_scale=0.37))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 3, 17, 31])
@pytest.mark.parametrize("elements", [1, 20, 40, 1000])
def test_any_alignment_and_nothing_outside(elements: int, offset: int, dtype: torch.dtype) -> None:
    state, grad = random_state(elements + 2 * offset)
    inside = slice(offset, offset + elements)
    arrays = [state.master, state.exp_avg, state.exp_avg_sq, torch.full_like(grad, 7, dtype=dtype)]
    before = [array.clone() for array in arrays]
    part = AdamState(*(array[inside] for array in arrays[:3]))
    check(part, grad.to(dtype)[inside], scalars_at(2), arrays[3][inside])
    for array, old in zip(arrays, before, strict=True):
        assert torch.equal(array[:offset], old[:offset])
        assert torch.equal(array[offset + elements :], old[offset + elements :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["master", "exp_avg", "exp_avg_sq", "grad"])
def test_edge_values_in_every_argument(name: str, dtype: torch.dtype) -> None:
    """Each edge value meets each of a few ordinary ones, in whole vectors and in what is left over."""
    edges = from_bits(EDGES).repeat_interleave(5)
    state, grad = random_state(len(edges))
    if name == "grad":
        grad = edges
    else:
        setattr(state, name, edges)
    check(state, grad.to(dtype), scalars_at(7))


def test_rounding_of_every_bfloat16_and_its_neighbours() -> None:
    """lr = 0 and no decay leave the master as it is, so the weight is nothing but its rounding."""
    upper = torch.arange(65536, dtype=torch.int64) << 16
    bits = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    master = bits.to(torch.int32).view(torch.float32)
    zeros = torch.zeros_like(master)
    weight = torch.empty_like(master, dtype=torch.bfloat16)
    adamw_(AdamState(master, zeros, zeros.clone()), weight.clone().zero_(), weight, scalars_at(1, lr=0.0))
    assert same_bits(weight, bits.to(torch.int32).view(torch.float32).to(torch.bfloat16))


floats = st.integers(0, 0xFFFFFFFF)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(floats, floats, floats, floats), min_size=1, max_size=70),
    st.lists(floats, min_size=9, max_size=9),
)
def test_equals_the_graph_on_any_bits(rows: list[tuple[int, ...]], scalars: list[int]) -> None:
    master, exp_avg, exp_avg_sq, grad = (from_bits(list(column)) for column in zip(*rows, strict=True))
    check(AdamState(master, exp_avg, exp_avg_sq), grad.to(torch.bfloat16), from_bits(scalars))


def test_no_contraction_in_the_machine_code() -> None:
    """A fused multiply-add would round once where torch rounds twice."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    code = machine.emit_assembly(llvm.parse_assembly(assembly()))
    assert not re.search(r"\bv?fn?m(add|sub)|\bfml[as]\b", code)


@pytest.mark.parametrize("name", ["master", "exp_avg", "exp_avg_sq", "grad", "weight", "scalars"])
@pytest.mark.parametrize("change", ["shorter", "strided", "another dtype", "another device"])
def test_arrays_that_the_code_must_not_be_given(name: str, change: str) -> None:
    state, grad = random_state(100)
    arrays = {**vars(state), "grad": grad.bfloat16(), "weight": grad.bfloat16(), "scalars": scalars_at(1)}
    array = arrays[name]
    arrays[name] = {
        "shorter": array[:-1],
        "strided": array.repeat_interleave(2)[::2],
        "another dtype": array.half(),
        "another device": array.to("meta"),
    }[change]
    with pytest.raises(ValueError, match="contiguous numbers of torch"):
        adamw_(AdamState(*(arrays.pop(part) for part in vars(state))), **arrays)


def test_a_gradient_whose_squares_the_code_must_not_add() -> None:
    for grad in (torch.ones(10)[::2], torch.ones(10, dtype=torch.half), torch.ones(10, device="meta")):
        with pytest.raises(ValueError, match="contiguous numbers of torch"):
            square_sum(grad)


def test_threads_on_parts_of_one_state() -> None:
    state, grad = random_state(10_000)
    expected, weight = AdamState(*(t.clone() for t in vars(state).values())), torch.empty(10_000, dtype=torch.bfloat16)
    low = grad.to(torch.bfloat16)
    adamw_(expected, low, weight, scalars_at(3))
    parts = torch.empty_like(weight)

    def update(begin: int) -> None:
        part = slice(begin, begin + 1001)
        adamw_(AdamState(*(t[part] for t in vars(state).values())), low[part], parts[part], scalars_at(3))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(update, range(0, 10_000, 1001)))
    assert torch.equal(weight, parts)
    assert torch.equal(expected.master, state.master)


def test_threads_that_ask_for_the_kernels_first() -> None:
    """In a process of its own: LLVM would crash it."""
    code = """
import threading
from trainer.optim.kernel import kernels
found = []
threads = [threading.Thread(target=lambda: found.append(kernels())) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [0, 1, 33, 5000])
def test_square_sum(elements: int, dtype: torch.dtype) -> None:
    """Within 1e-14 relative of torch's float64 sum: both add squares that are exact in float64."""
    grad = random_state(elements)[1].to(dtype)
    expected = grad.double().square().sum().item()
    assert math.isclose(square_sum(grad), expected, rel_tol=1e-14)


def test_square_sum_of_what_is_not_finite() -> None:
    grad = torch.ones(100)
    grad[50] = math.inf
    assert square_sum(grad) == math.inf
    grad[99] = math.nan
    assert math.isnan(square_sum(grad))


def test_a_line_is_whole_vectors() -> None:
    assert WIDE * torch.bfloat16.itemsize % LINE_BYTES == 0
