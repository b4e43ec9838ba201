"""The allocation failure that the guard is for: without it, at once; with it, not at all.

The stress runs last two minutes and at least 50,000 graph calls and uploads with GRAPHCACHE_STORMS=long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.storms import rounds

ROOT = Path(__file__).resolve().parents[2]
OLDER = os.environ.get("GRAPHCACHE_TEST_FURIOSA_2026_2", "")
SECS, COUNT = str(rounds(5, 120)), str(rounds(2000, 50_000))

OLD = pytest.mark.skipif(not OLDER, reason="GRAPHCACHE_TEST_FURIOSA_2026_2 names no folder with furiosa-torch 2026.2.0")
FLAGS = [
    pytest.param("", "emulated", id="emulated-flag"),
    pytest.param(OLDER, "the vendor's", id="vendors-flag", marks=OLD),
]


def run_race(overlay: str, *options: str) -> dict[str, Any]:
    """In a process of its own: the release is chosen when Python starts."""
    environment = {**os.environ, "PYTHONPATH": overlay}
    command = [sys.executable, "-m", "tests.device.race", *options]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout, run.stderr
    outcome: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    print(outcome)
    return outcome


@pytest.mark.compiler
@pytest.mark.parametrize(("overlay", "flag"), FLAGS)
def test_without_the_guard_an_upload_fails_within_100_graph_calls(overlay: str, flag: str) -> None:
    outcome = run_race(overlay, "--guard", "off")
    assert outcome["flag"] == flag
    assert outcome["calls"] <= 100
    assert "failed to allocate" in outcome["errors"][0]
    assert "DRAM_SHARED" in outcome["errors"][0]
    assert "capacity: 0" in outcome["errors"][0]


@pytest.mark.compiler
@pytest.mark.stress
@pytest.mark.parametrize(("overlay", "flag"), FLAGS)
def test_with_the_guard_none_fails_and_every_bit_comes_back(overlay: str, flag: str) -> None:
    outcome = run_race(overlay, "--secs", SECS, "--at-least", COUNT)
    assert outcome["flag"] == flag
    assert outcome["errors"] == []
    assert outcome["calls"] >= int(COUNT)
    assert outcome["uploads"] >= int(COUNT)
    assert outcome["left_bytes"] == 0
