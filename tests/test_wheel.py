"""The wheel: it has the packages and nothing else, and what is installed from it works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.stress

ROOT = Path(__file__).parents[1]
PACKAGES = {"cli", "graphcache", "trainer"}
# Those that need no file of the checkout but their own.
TESTS = ("header", "manifest", "marks", "test_catalog.py", "test_key.py", "test_own_options.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network, from a copy, since a build writes beside its sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*sorted(PACKAGES), "pyproject.toml", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel; it sees the packages that it needs, and not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel)],
        check=True,
    )
    # Only the folder itself: an editable install of the checkout is in its .pth files.
    others = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "packages.pth").write_text("\n".join(dict.fromkeys(others)) + "\n")
    return folder / "bin" / "python"


def run(python: Path, *words: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [str(python), *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_it_has_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert "graphcache/py.typed" in names
    ours = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours


def test_what_is_installed_is_what_runs(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-c", "import graphcache, trainer, cli; print(graphcache.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    version = run(installed, "-m", "cli.main", "--version", folder=tmp_path)
    assert "commit" not in version, "what is installed is of no checkout"
    run(installed, "-m", "trainer", "--help", folder=tmp_path)


def test_the_tests_pass_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    paths = [f"tests/{name}" for name in TESTS]
    run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, folder=tmp_path)
