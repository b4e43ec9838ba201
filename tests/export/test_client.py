"""Programs by a process of its own, with the real torch; and diff in a process of its own, where torch stays out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphcache.errors import ToolchainError
from graphcache.export import client as exporting
from graphcache.export.client import ExportingError, export_programs, installed_torch
from graphcache.graph import Graph, TensorSpec
from graphcache.local.memo import memo_of
from graphcache.runtime.versions import remember_revision
from graphcache.vendor import layouts as vendor
from tests.store.fakes import TOOLCHAIN
from tests.support.project import Project, states

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = """
import torch

FACTOR = 2.0
print("what a module prints is no answer")


def plain(x):
    return torch.relu(x * FACTOR)


def scale(value):
    return value * 2.0


def rewritten(x):
    '''The same steps.'''
    scaled = scale(x)
    return scaled.relu()


def changed(x):
    return torch.relu(x * 3.0)


def broken(x):
    raise RuntimeError("no good")
"""
# Hides torch and the vendor, as if they were not installed.
BLOCKER = """
import importlib.metadata
import sys

HIDDEN = ("torch", "furiosa", "furiosa-torch")
distribution = importlib.metadata.distribution


def hide(name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return distribution(name)


class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden")


sys.meta_path.insert(0, Blocker)
importlib.metadata.distribution = hide
"""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def graph(name: str, size: int = 8) -> Graph:
    return Graph(f"{name}[{size}]", "demo", f"exported.graphs:{name}", (TensorSpec("x", "float32", (size,)),))


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "graphs.py").write_text(GRAPHS)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@needs_torch
def test_programs_are_what_torch_exports(package):
    names = ("plain", "rewritten", "changed", "broken")
    plain, rewritten, changed, broken = export_programs([graph(name) for name in names])
    assert plain == rewritten
    assert plain != changed
    assert isinstance(broken, ExportingError)
    assert "no good" in broken.message


@needs_torch
def test_a_program_is_not_kept_for_a_source_that_was_edited_meanwhile(package):
    edit = "import pathlib\nhere = pathlib.Path(__file__)\nhere.write_text(here.read_text().replace('2.0', '2.5'))\n"
    (package / "graphs.py").write_text(edit + GRAPHS)
    (found,) = export_programs([graph("plain")])
    assert isinstance(found, ExportingError)
    assert "was changed while it was exported" in found.message


@needs_torch
def test_code_in_the_current_folder_is_not_run(package, tmp_path, monkeypatch):
    (before,) = export_programs([graph("plain")])
    folder = tmp_path / "checkpoint"
    other = folder / "exported"
    other.mkdir(parents=True)
    (other / "graphs.py").write_text(GRAPHS.replace("FACTOR = 2.0", "FACTOR = 2.5"))
    for name in ("torch", "subprocess", "json"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder was run')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *(place for place in sys.path if place)])
    # With an empty entry first, this process would take the folder's; its helper must not, and must not answer for it.
    (found,) = export_programs([graph("plain")])
    assert isinstance(found, ExportingError)
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert export_programs([graph("plain")]) == [before]


BAD = """
import torch
import exported.before
torch.set_default_dtype(torch.float64)
import exported.after


def bad(x):
    return x + 1


def worse(x):
    return x + 2
"""
GOOD = "import torch\nTABLE = torch.ones(8)\n\n\ndef good(x):\n    return x + TABLE\n"


@needs_torch
def test_a_module_that_changes_torchs_state_refuses_its_own_graphs_and_no_others(package):
    """Whichever comes first: what it imports is innocent, and what it has imported is of the changed state."""
    for name, text in (("bad", BAD), ("before", GOOD), ("after", GOOD)):
        (package / f"{name}.py").write_text(text)
    spec = TensorSpec("x", "float32", (8,))
    functions = ("bad:bad", "before:good", "bad:worse", "after:good")
    graphs = [Graph(each, "demo", f"exported.{each}", (spec,)) for each in functions]
    bad, before, worse, after = export_programs(graphs)
    for refused in (bad, worse):
        assert isinstance(refused, ExportingError)
        assert "changes torch's default dtype" in refused.message
    assert before == after
    assert export_programs([graphs[3], graphs[1]]) == [after, before]


def test_an_exporter_that_dies_is_an_error_of_each_graph_that_it_left(package, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    first, second = export_programs([graph("plain"), graph("changed")])
    assert isinstance(first, ExportingError)
    assert isinstance(second, ExportingError)
    assert "exit code 1" in first.message


# --- diff in a process of its own -------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    made = Project(tmp_path / "project")
    for place in made.import_path:
        monkeypatch.syspath_prepend(place)
    from graphcache import catalog

    catalog._installed.cache_clear()
    made.build()
    catalog._installed.cache_clear()
    made.forget_modules()
    try:
        vendor.layout()
    except ToolchainError:
        return made
    with memo_of(made.store.root) as memo:
        # Asking the compiler takes three seconds and is not what is tested.
        remember_revision(memo, TOOLCHAIN["compiler-revision"])
    return made


def diff(project: Project, blocker: Path | None = None) -> tuple[int, dict[str, tuple[str, list[str]]], list[str]]:
    """Exit code, states, and which of the heavy modules a diff has loaded at its end; no cross gcc with a blocker."""
    script = (
        "import sys; from cli.main import run; code = run(['diff', '--json']);"
        "print(code, *(m for m in ('torch', 'numpy', 'furiosa', 'rich') if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env={
            **os.environ,
            "GRAPHCACHE_DIR": str(project.store.root),
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [blocker, *project.import_path, ROOT]))),
            **({"PATH": ""} if blocker else {}),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    code, *loaded = done.stderr.splitlines()[-1].split()
    return int(code), states(done.stdout), loaded


@pytest.fixture
def blocker(tmp_path) -> Path:
    folder = tmp_path / "blocker"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return folder


def test_diff_loads_no_torch(project):
    code, found, loaded = diff(project)
    assert code in (0, 1)
    assert set(found) == {"step[32]", "step[128]", "norm[8]"}
    assert loaded == []


def test_without_torch_and_vendor_an_unchanged_project_is_nothing_to_do(project, blocker):
    project.edit("graphs.py", "def double", "# Twice.\ndef double")
    code, found, loaded = diff(project, blocker)
    assert (code, loaded) == (0, [])
    assert {state for state, _ in found.values()} == {"unchanged"}


def test_without_torch_a_changed_source_is_unknown_and_to_do(project, blocker):
    project.edit("numbers.py", "3.0", "4.0")
    code, found, loaded = diff(project, blocker)
    assert code == 1
    state, reasons = found["step[32]"]
    assert state == "stale"
    assert reasons[0] == "source: demo_graphs/numbers.py::FACTOR"
    assert reasons[-1] == "program unknown here: torch 2.10.0 is not installed"
    assert loaded == []


@needs_torch
def test_the_installed_torch_is_told_without_importing_it():
    script = "import sys; from graphcache.export.client import installed_torch as f; print(f(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(installed_torch()), "False"]


def test_the_answers_are_json_lines():
    settings = {"tactic": "io-bound"}
    answer = exporting._answer(json.dumps({"program": "ab", "source": "s", "settings": settings}), "s")
    assert (answer.program, answer.settings) == ("ab", settings)
    other = exporting._answer(json.dumps({"program": "ab", "source": "t", "settings": settings}), "s")
    assert isinstance(other, ExportingError)
    error = exporting._answer(json.dumps({"error": {"name": "export", "message": "m", "hint": "h"}}), "s")
    assert isinstance(error, ExportingError)
    assert (error.message, error.hint) == ("m", "h")
