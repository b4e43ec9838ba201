"""Commands that are printed for people run the graphcache that printed them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.process.own_command import own_command

ROOT = Path(__file__).parents[2]
PROBE = "from graphcache.process.own_command import own_command; print(*own_command())"
MANIFEST = ROOT / "cache_manifests" / "smollm2-135m-adamw.json"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A checkout beside the one that is installed."""
    folder = tmp_path / "second"
    for package in ("graphcache", "cli", "trainer"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "probe.py").write_text(PROBE)
    return folder


def python(*args: str, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_installed_package_is_run_by_its_command(tmp_path: Path) -> None:
    assert own_command() == ("graphcache",)
    assert python("-c", PROBE, cwd=tmp_path) == "graphcache"
    assert python("-c", PROBE, cwd=ROOT) == "graphcache", "it lies in the current folder, and is the installed one"


def test_another_checkout_is_run_by_its_module(second: Path) -> None:
    assert python("-m", "probe", cwd=second) == "python -m cli.main"
    assert python("probe.py", cwd=second) == "python -m cli.main"


def test_what_the_path_says_counts_for_the_command_too(second: Path, tmp_path: Path) -> None:
    assert python("-c", PROBE, cwd=tmp_path, PYTHONPATH=str(second)) == "graphcache"
    assert python("-P", "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(second)) == "graphcache"


def test_a_command_that_diff_prints_in_another_checkout_works_there(second: Path, tmp_path: Path) -> None:
    manifest, cache = second / "m.json", str(tmp_path / "cache")
    shutil.copy(MANIFEST, manifest)
    shown = json.loads(python("-m", "cli.main", *f"diff --manifest m.json --cache {cache} --json".split(), cwd=second))
    command = shlex.split(shown["manifests"][0]["command"])
    assert command[:4] == ["python", "-m", "cli.main", "build"]
    planned = json.loads(python(*command[1:], "--dry-run", "--json", cwd=second))
    # Without the vendor it stops after its sources were compared.
    assert "graphs" in planned or planned["error"]["name"] == "toolchain"
