"""examples/adapters: installed into an environment of its own, built with the real compiler, edited, trained."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "adapters"
STEPS = 6


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example beside a fresh environment that it is installed into; of the packages that it needs, torch
    and the compiler above all, that environment sees the ones of this."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    venv.create(folder / ".venv", with_pip=False)
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    # site reads the .pth files of the folders that it is told, those of editable installs too.
    others = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(others)]
    (site / "packages.pth").write_text("\n".join(lines) + "\n")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), "--no-compile", "-e", str(folder)], check=True, cwd=folder)
    return folder


def call(project: Path, *words: str, code: int = 0) -> str:
    """A command in the project's environment; what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GRAPHCACHE_"))}
    environment |= {"GRAPHCACHE_DIR": str(project / "cache"), "XDG_CACHE_HOME": str(project / "xdg")}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [str(project / ".venv" / "bin" / "python"), "-m", *words]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(project: Path, model: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([\d.]+)", call(project, "adapters.train", model, str(STEPS)))]


@pytest.mark.compiler
def test_it_is_built_edited_compared_and_trained(project: Path) -> None:
    manifest = "cache_manifests/adapters.json"
    lacking = json.loads(call(project, "cli.main", "diff", "--json", code=1))
    assert set(lacking["counts"]) == {"missing from the store"}, "the committed manifest is of these sources"
    missing = call(project, "adapters.train", "mlp", code=1)
    assert "MissingGraphsError" in missing, "nothing compiles by itself"
    build = ("cli.main", "build", "--only", "adapters", "--manifest", manifest, "--prove", "none")
    built = json.loads(call(project, *build, "--jobs", "1", "--json"))
    assert {graph["state"] for graph in built["graphs"]} == {"compiled"}
    assert json.loads(call(project, "cli.main", "diff", "--json"))["to_do"] == 0
    found = losses(project, "mlp")
    assert len(found) == STEPS
    assert found[-1] < 0.8 * found[0]

    graphs = project / "adapters" / "graphs.py"
    graphs.write_text(graphs.read_text().replace("torch.where(inner > 0,", "torch.where(inner >= 0,"))
    compared = json.loads(call(project, "cli.main", "diff", "--json", code=1))
    stale = {graph["graph"]: graph["reasons"] for graph in compared["manifests"][0]["graphs"] if graph["to_do"]}
    assert stale == {"mlp_backward[32x256]": ["source: adapters/graphs.py::mlp_backward"]}
    again = json.loads(call(project, *build, "--jobs", "1", "--json"))
    assert {graph["graph"] for graph in again["graphs"] if graph["state"] == "compiled"} == {"mlp_backward[32x256]"}
    assert json.loads(call(project, "cli.main", "diff", "--json"))["to_do"] == 0
    edited = losses(project, "mlp")
    assert edited[0] == found[0]
    assert edited[-1] != found[-1], "what runs is what was edited"


def test_another_rank_is_an_option(project: Path) -> None:
    words = ("cli.main", "build", "--only", "adapters", "--set", "adapters.rank=32", "--dry-run", "--json")
    names = [graph["graph"] for graph in json.loads(call(project, *words))["graphs"]]
    assert "adamw[8192]" in names
    assert "adamw[4096]" not in names
