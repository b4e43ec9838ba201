"""Whole runs on the emulated card: the vendor's own lowered graphs, run on the host, against the cpu backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs import losses, settings, train
from trainer.config import RunConfig

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def cache(llama, compiled_cache) -> Path:
    """A cache with the tiny model's AdamW graphs."""
    command = [sys.executable, "-m", "cli.main", "build", "--shapes-from", str(llama), "--only", "adamw"]
    subprocess.run([*command, "--cache", str(compiled_cache)], check=True, capture_output=True)
    return compiled_cache


def emulated(config: RunConfig, out: Path, cache: Path, **others) -> RunConfig:
    changed = {"out": out, "cache": str(cache), "backend": "emulator", "eager_layers": True, **others}
    return RunConfig(**{**vars(config), **changed})


def test_25_resident_steps_on_the_emulator_equal_offload_within_half_a_percent(llama, data, cache, tmp_path):
    config = settings(llama, data, tmp_path / "offload", dtype="bfloat16", steps=25)
    offload = losses(train(config))
    resident = train(emulated(config, tmp_path / "resident", cache, resident_layers=3))
    assert losses(resident) == pytest.approx(offload, rel=5e-3)
    assert all(record["device_bytes"]["emulator"] == resident[0]["device_bytes"]["emulator"] for record in resident)


def test_two_emulated_cards_equal_one_bit_for_bit(llama, data, cache, tmp_path):
    config = settings(llama, data, tmp_path / "one", dtype="bfloat16", resident_layers=1)
    one = train(emulated(config, tmp_path / "one", cache, resident_layers=2))
    two = train(emulated(config, tmp_path / "two", cache, backend="emulator:2"))
    assert set(two[0]["device_bytes"]) == {"emulator:0", "emulator:1"}
    # Layers 0 and 1 are resident in both.
    assert losses(one) == losses(two)
