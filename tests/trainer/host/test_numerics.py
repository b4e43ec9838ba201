"""Settings of torch for a run: in force inside, as before outside, and cheap to make."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from trainer.host.numerics import deterministic, thread_count


def test_settings_are_in_force_inside_and_as_before_outside() -> None:
    flags = torch.utils.deterministic
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), flags.fill_uninitialized_memory
    with deterministic(3):
        assert torch.get_num_threads() == 3
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not flags.fill_uninitialized_memory
    after = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), flags.fill_uninitialized_memory
    assert after == before


def test_settings_are_as_before_after_an_error() -> None:
    with pytest.raises(KeyError), deterministic(1):
        raise KeyError("x")
    assert not torch.are_deterministic_algorithms_enabled()


def test_torchs_compiler_is_not_loaded() -> None:
    script = (
        "import sys; from trainer.host.numerics import deterministic\n"
        "with deterministic(1): pass\n"
        "assert 'torch' in sys.modules\n"
        "print([m for m in ('torch._inductor', 'torch._dynamo') if m in sys.modules])"
    )
    # As `python -m trainer` sets it: the vendor's half, which torch would load by itself, loads torch's compiler.
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4, 2"}, 4),
        ({"OMP_NUM_THREADS": "64"}, 8),
        ({"OMP_THREAD_LIMIT": "2"}, 2),
        ({"OMP_NUM_THREADS": "5", "OMP_THREAD_LIMIT": "6"}, 5),
        ({"OMP_NUM_THREADS": "0", "OMP_THREAD_LIMIT": "few"}, 8),
    ],
)
def test_threads_are_the_cpus_or_fewer_where_openmp_was_told(
    variables: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.host.numerics.available_cpus", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert thread_count() == threads


def test_teams_are_whole_inside_and_as_before_outside() -> None:
    openmp = ctypes.CDLL(None)
    openmp.omp_set_dynamic(1)
    try:
        with deterministic(2):
            assert not openmp.omp_get_dynamic()
        assert openmp.omp_get_dynamic()
    finally:
        openmp.omp_set_dynamic(0)


@pytest.mark.parametrize("variable", ["OMP_THREAD_LIMIT=1", "OMP_DYNAMIC=true", "OMP_NUM_THREADS=1"])
def test_bfloat16_products_are_right_whatever_openmp_was_told(variable: str) -> None:
    """In a process of its own: OpenMP reads its variables once. Wrong was every product, in half of its rows."""
    script = """
import torch
from trainer.host.numerics import deterministic
torch.manual_seed(0)
a, b = torch.randn(64, 64).bfloat16(), torch.randn(96, 64).bfloat16()
with deterministic(2):
    torch.testing.assert_close(a @ b.t(), (a.double() @ b.double().t()).bfloat16(), rtol=0.02, atol=0.02)
"""
    name, _, value = variable.partition("=")
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", name: value}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)


def test_the_command_turns_smaller_teams_off_before_torch_is_loaded() -> None:
    """For all threads: those that do not enter `deterministic` have OpenMP's own default."""
    script = """
import os, sys
from trainer.__main__ import main
main(["--help"])
print(os.environ["OMP_DYNAMIC"], "torch" in sys.modules)
"""
    env = {**os.environ, "OMP_DYNAMIC": "true"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert run.stdout.splitlines()[-1] == "false False"
