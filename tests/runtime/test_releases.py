"""What depends on the vendor's release, run against the older one: a second pytest with it laid over this environment.

pip install --no-deps --target DIR furiosa-torch==2026.2.0
GRAPHCACHE_TEST_FURIOSA_2026_2=DIR pytest -m compiler tests/runtime/test_releases.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/runtime/test_refusal.py",
    *(f"tests/device/test_{n}.py" for n in ("guard", "emulator", "furiosa")),
)
OLDER = os.environ.get("GRAPHCACHE_TEST_FURIOSA_2026_2", "")

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not OLDER, reason="GRAPHCACHE_TEST_FURIOSA_2026_2 names no folder with furiosa-torch 2026.2.0"),
]


def under_the_older(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": OLDER}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_it_is_the_older_release() -> None:
    run = under_the_older("-c", "from graphcache.vendor import layouts as vendor; print(vendor.layout().release)")
    assert run.stdout.strip() == "2026.2", run.stderr


def test_it_shares_its_memory_flag_between_threads() -> None:
    ask = "from graphcache.runtime.furiosa import flag_is_shared_by_threads as ask; print(ask())"
    assert under_the_older("-c", ask).stdout.strip() == "True"


def test_the_tests_of_both_halves_of_the_guard_pass_under_it() -> None:
    run = under_the_older("-m", "pytest", "-m", "not stress", "-p", "no:cacheprovider", *TESTS)
    assert run.returncode == 0, run.stdout + run.stderr
