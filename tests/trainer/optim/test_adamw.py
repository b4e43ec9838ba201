"""The optimizer over units: against torch's, and offload against resident, workers and errors."""

from __future__ import annotations

import math
import threading
import traceback
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.optim.example import (
    SETTINGS,
    SHAPES,
    FakeUnit,
    fresh_states,
    gradients_of,
    open_adamw,
    random_tensors,
    run_steps,
    submit,
    values,
)
from trainer.config import RunConfig
from trainer.device.cpu import CpuBackend
from trainer.optim import offload
from trainer.optim.adamw import worker_count
from trainer.optim.clip import NonFiniteGradientError

DTYPES = ["bfloat16", "float32"]


def trained(dtype: str, *, workers: int = 2, resident: bool = False, steps: int = 5) -> list[Tensor]:
    backend = CpuBackend()
    units = [FakeUnit(f"layers.{i}", backend, dtype, resident=resident) for i in range(3)]
    optimizer = open_adamw(units, dtype=dtype, workers=workers)
    run_steps(optimizer, units, steps)
    found = values(optimizer, units)
    optimizer.close()
    assert backend.bytes_in_use == 0
    return found


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("resident", [False, True])
def test_against_torch(resident: bool, clip_norm: float | None) -> None:
    """300 steps in float32; masters within 2e-6 absolute of torch.optim.AdamW, whose order of operations differs."""
    backend = CpuBackend()
    unit = FakeUnit("layers.0", backend, "float32", resident=resident)
    optimizer = open_adamw([unit], dtype="float32", clip_norm=clip_norm)
    theirs = {n: torch.nn.Parameter(s.master.view(SHAPES[n]).clone()) for n, s in fresh_states(0).items()}
    groups = [
        {"params": [p for p in theirs.values() if p.dim() > 1], "weight_decay": SETTINGS.weight_decay},
        {"params": [p for p in theirs.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    torch_adamw = torch.optim.AdamW(
        groups, lr=1e-2, betas=(SETTINGS.beta1, SETTINGS.beta2), eps=SETTINGS.eps, foreach=False, fused=False
    )
    for step in range(1, 301):
        lr = 1e-2 / step
        for group in torch_adamw.param_groups:
            group["lr"] = lr
        gradients = gradients_of(step, 0)
        for name, parameter in theirs.items():
            parameter.grad = gradients[name].clone()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), clip_norm)
        torch_adamw.step()
        optimizer.begin_step(step, lr)
        submit(optimizer, unit, gradients)
        optimizer.finish_step()
    for name, state in optimizer.state(unit).items():
        torch.testing.assert_close(state.master.view(SHAPES[name]), theirs[name].detach(), rtol=0, atol=2e-6)
    optimizer.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_resident_equals_offload(dtype: str) -> None:
    assert same(trained(dtype, resident=True), trained(dtype, resident=False))


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a parameter is many jobs."""
    monkeypatch.setattr(offload, "JOB_ELEMENTS", 3)
    assert same(trained("bfloat16", workers=workers), trained("bfloat16", workers=1))


@pytest.mark.parametrize(("asked", "cpus", "used"), [(4, 2, 2), (4, 16, 4), (1, 16, 1)])
def test_no_more_workers_than_cpus(asked: int, cpus: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.optim.adamw.available_cpus", lambda: cpus)
    config = RunConfig(model=Path("m"), data=Path("d"), out=Path("o"), update_workers=asked)
    assert worker_count(config) == used


@pytest.mark.parametrize("resident", [False, True])
def test_lr_of_zero_changes_nothing(resident: bool) -> None:
    unit = FakeUnit("layers.0", CpuBackend(), resident=resident)
    optimizer = open_adamw([unit])
    run_steps(optimizer, [unit], 3, lr=0.0)
    for name, before in fresh_states(0).items():
        assert torch.equal(optimizer.state(unit)[name].master, before.master)
        assert torch.equal(unit.weights[name], before.master.bfloat16())
    optimizer.close()


@pytest.mark.parametrize("resident", [False, True])
def test_decay_on_matrices_alone(resident: bool) -> None:
    unit = FakeUnit("layers.0", CpuBackend(), "float32", resident=resident)
    optimizer = open_adamw([unit], dtype="float32")
    optimizer.begin_step(1, 0.5)
    submit(optimizer, unit, {name: torch.zeros(shape) for name, shape in SHAPES.items()})
    optimizer.finish_step()
    for name, before in fresh_states(0).items():
        kept = 1 - 0.5 * SETTINGS.weight_decay if len(SHAPES[name]) > 1 else 1.0
        torch.testing.assert_close(unit.weights[name], before.master * kept, rtol=1e-7, atol=0)
    optimizer.close()


def test_bias_correction_is_the_same_for_every_unit_of_a_step() -> None:
    """Equal states and gradients stay equal, whichever place in the step a unit has, and beyond step 256."""
    backend = CpuBackend()
    units = [FakeUnit(f"layers.{i}", backend, resident=i % 2 == 1) for i in range(4)]
    optimizer = open_adamw(units)
    for unit in units:
        for parameters in optimizer._parameters.pop(unit.name, {}).values():
            parameters.free()
        optimizer.adopt(unit, fresh_states(7))
    for step in (1, 255, 256, 257, 1000):
        optimizer.begin_step(step, 1e-2)
        for unit in units:
            submit(optimizer, unit, gradients_of(step, 0))
        optimizer.finish_step()
        first, *others = [values(optimizer, [unit]) for unit in units]
        assert all(same(first, other) for other in others)
    optimizer.close()


@pytest.mark.parametrize("resident", [False, True])
def test_old_weights_go_before_the_update(resident: bool) -> None:
    unit = FakeUnit("layers.0", CpuBackend(), resident=resident)
    optimizer = open_adamw([unit])
    run_steps(optimizer, [unit], 1)
    optimizer.close()
    assert unit.log[0] == "drop"
    assert sorted(line for line in unit.log if line.startswith("install")) == sorted(f"install {n}" for n in SHAPES)


def test_a_resident_matrix_frees_its_gradients_before_the_next_ones_are_cut() -> None:
    """Never more on the device than the state and one matrix's update."""
    backend = CpuBackend()
    unit = FakeUnit("layers.0", backend, "float32", resident=True)
    optimizer = open_adamw([unit], dtype="float32")
    state_bytes = backend.bytes_in_use
    largest = max(4 * math.prod(shape) for shape in SHAPES.values())
    backend.peak_bytes = 0
    run_steps(optimizer, [unit], 2)
    assert backend.bytes_in_use == state_bytes
    # Its gradient, its new weight, and one tile's old and new state.
    assert backend.peak_bytes <= state_bytes + 3 * largest + 4 * 40 * 4 + 9 * 4
    optimizer.close()


def test_a_weight_is_installed_when_all_of_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "JOB_ELEMENTS", 2)
    unit = FakeUnit("layers.0", CpuBackend())
    optimizer = open_adamw([unit], workers=4)
    wrong: list[str] = []
    keep = unit.install

    def install(name: str) -> None:
        if not torch.equal(unit.placed[name], optimizer.state(unit)[name].master.bfloat16()):
            wrong.append(name)
        keep(name)

    monkeypatch.setattr(unit, "install", install)
    run_steps(optimizer, [unit], 20)
    optimizer.close()
    assert wrong == []


def test_a_workers_error_ends_the_step_with_its_own_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    units = [FakeUnit(f"layers.{i}", CpuBackend()) for i in range(3)]
    optimizer = open_adamw(units)

    def upload_that_fails(name: str) -> None:
        raise OSError(f"no room for {name}")

    monkeypatch.setattr(units[1], "install", upload_that_fails)
    with pytest.raises(OSError, match="no room for") as caught:
        run_steps(optimizer, units, 2)
    assert "upload_that_fails" in "".join(traceback.format_exception(caught.value))
    assert max(unit.log.count("drop") for unit in units) == 1  # it ended within the first step
    optimizer.close()


def test_an_error_at_shutdown_does_not_hide_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = FakeUnit("layers.0", CpuBackend(), resident=True)
    optimizer = open_adamw([unit])

    def fail() -> None:
        raise OSError("shutting down failed too")

    monkeypatch.setattr(optimizer, "_free", fail)

    def first_then_close() -> None:
        try:
            raise ValueError("the first")
        finally:
            optimizer.close()

    with pytest.raises(ValueError, match="the first") as caught:
        first_then_close()
    assert "shutting down failed too" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="shutting down failed too"):
        optimizer.close()


def test_state_on_the_host_is_not_copied() -> None:
    unit = FakeUnit("layers.0", CpuBackend())
    optimizer = open_adamw([unit])
    states = fresh_states(0)
    optimizer.adopt(unit, states)
    assert all(optimizer.state(unit)[name] is state for name, state in states.items())
    optimizer.close()


@pytest.mark.parametrize("resident", [False, True])
def test_clipping_holds_updates_back_until_the_norm_is_known(resident: bool) -> None:
    backend = CpuBackend()
    units = [FakeUnit(f"layers.{i}", backend, "float32", resident=resident) for i in range(3)]
    optimizer = open_adamw(units, dtype="float32", clip_norm=0.01)
    optimizer.begin_step(1, 1e-2)
    for number, unit in enumerate(units):
        submit(optimizer, unit, gradients_of(1, number))
    optimizer._workers.wait()
    assert all(unit.weights == {} for unit in units)
    report = optimizer.finish_step()
    assert all(set(unit.weights) == set(SHAPES) for unit in units)

    everything = torch.cat([g.flatten() for i in range(3) for g in gradients_of(1, i).values()]).double()
    assert report.grad_norm == pytest.approx(everything.norm().item(), rel=1e-12)
    assert report.clip_factor == pytest.approx(0.01 / everything.norm().item(), rel=1e-3)
    optimizer.close()


def test_clipping_is_the_same_for_workers_and_places() -> None:
    def clipped(workers: int, resident: bool) -> list[Tensor]:
        units = [FakeUnit(f"layers.{i}", CpuBackend(), resident=resident) for i in range(3)]
        optimizer = open_adamw(units, workers=workers, clip_norm=0.05)
        run_steps(optimizer, units, 5)
        found = values(optimizer, units)
        optimizer.close()
        return found

    first = clipped(1, False)
    assert all(same(first, clipped(*other)) for other in [(2, False), (4, False), (2, True)])


def test_gradients_that_are_not_finite_change_nothing() -> None:
    unit = FakeUnit("layers.0", CpuBackend())
    optimizer = open_adamw([unit], clip_norm=1.0)
    before = values(optimizer, [unit])
    gradients = random_tensors(1)
    gradients["odd.weight"][3, 3] = math.nan
    optimizer.begin_step(1, 1e-2)
    submit(optimizer, unit, gradients)
    with pytest.raises(NonFiniteGradientError):
        optimizer.finish_step()
    assert same(before, values(optimizer, [unit]))
    optimizer.close()


def test_updates_run_while_the_main_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first unit's weights are installed although the step is not finished."""
    unit = FakeUnit("layers.0", CpuBackend())
    optimizer = open_adamw([unit])
    installed, keep = threading.Event(), unit.install

    def install(name: str) -> None:
        keep(name)
        installed.set()

    monkeypatch.setattr(unit, "install", install)
    optimizer.begin_step(1, 1e-2)
    submit(optimizer, unit, gradients_of(1, 0))
    assert installed.wait(10)
    report = optimizer.finish_step()
    assert report.busy_secs > 0
    assert report.grad_norm is None
    optimizer.close()


def test_a_unit_that_keeps_its_weights_has_them_written_in_place() -> None:
    units = [FakeUnit(f"layers.{i}", CpuBackend()) for i in range(2)]
    units[1].keeps_weights = True
    for name, state in fresh_states(1).items():
        units[1].weights[name] = state.master.bfloat16()
    kept = dict(units[1].weights)
    optimizer = open_adamw(units)
    run_steps(optimizer, units, 3)
    for name, state in optimizer.state(units[1]).items():
        assert units[1].weights[name] is kept[name]
        assert torch.equal(kept[name], state.master.bfloat16())
    optimizer.close()
