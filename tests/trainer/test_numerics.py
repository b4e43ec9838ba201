"""Settings of torch for a run: in force inside, as before outside, and cheap to make."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from trainer.numerics import deterministic


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
        "import sys; from trainer.numerics import deterministic\n"
        "with deterministic(1): pass\n"
        "assert 'torch' in sys.modules\n"
        "print([m for m in ('torch._inductor', 'torch._dynamo') if m in sys.modules])"
    )
    # As `python -m trainer` sets it: the vendor's half, which torch would load by itself, loads torch's compiler.
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert run.stdout.strip() == "[]"
