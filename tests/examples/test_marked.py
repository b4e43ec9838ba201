"""examples/marked: the commands of its page, with the real compiler, by a user who has only the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.marks.recorded import read_shapes

EXAMPLE = Path(__file__).parents[2] / "examples" / "marked"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy that may be edited."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")))


def call(folder: Path, *command: str, code: int = 0) -> str:
    environment = {
        **os.environ,
        "GRAPHCACHE_DIR": str(folder / "cache"),
        "XDG_CACHE_HOME": str(folder / "xdg"),
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([\d.]+)", printed)]


def test_a_recorded_run_learns_and_says_what_it_calls(folder: Path) -> None:
    found = losses(call(folder, sys.executable, "train.py", "--record", "shapes.json"))
    assert len(found) == 10
    assert found[-1] < found[0] / 2
    names = [graph.name for graph in read_shapes(folder / "shapes.json")]
    assert names == ["adamw[float32 4*4096 2*1]"]
    assert {graph.function.partition(":")[0] for graph in read_shapes(folder / "shapes.json")} == {"train"}


@pytest.mark.compiler
def test_it_is_built_trained_and_edited(folder: Path) -> None:
    build = (*(sys.executable, "-m", "cli.main", "build", "--from", "train", "--shapes", "shapes.json"), "--json")
    by_torch = losses(call(folder, sys.executable, "train.py", "--record", "shapes.json"))
    missed = call(folder, sys.executable, "train.py", code=1)
    assert "MissingGraphsError" in missed, "nothing compiles by itself"
    assert not (folder / "cache").exists()
    built = json.loads(call(folder, *build, "--jobs", "1"))
    assert {graph["state"] for graph in built["graphs"]} == {"compiled"}
    from_cache = losses(call(folder, sys.executable, "train.py"))
    assert from_cache == pytest.approx(by_torch, rel=1e-3)
    # A line is edited: its graph is stale.
    script = folder / "train.py"
    script.write_text(script.read_text().replace("w * (1 - LR * DECAY)", "w * (1 - 2 * LR * DECAY)"))
    stale = json.loads(call(folder, *build, "--dry-run"))
    states = {graph["graph"].partition("[")[0]: graph["state"] for graph in stale["graphs"]}
    assert states == {"adamw": "unknown"}
