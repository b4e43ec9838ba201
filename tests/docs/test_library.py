"""docs/library.md: it has every public name and no other, and each of its lines does what it says."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphcache

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
MODEL = ROOT / "tests" / "data" / "smollm2-135m"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """Title and text of the page's code blocks."""
    return [(title, text) for found, title, text in BLOCK.findall(PAGE) if found == language]


@pytest.mark.parametrize("name", graphcache.__all__)
def test_a_public_name_is_there_and_on_the_page(name: str) -> None:
    assert getattr(graphcache, name)
    assert re.search(rf"`(graphcache\.)?{name}\b|graphcache\.{name}\b|import .*\b{name}\b", PAGE), name


def test_no_other_name_is_public() -> None:
    modules = {module.name for module in pkgutil.iter_modules(graphcache.__path__)}
    assert not modules & {*graphcache.__all__}, "an import of the module would replace the name"
    used = {*re.findall(r"graphcache\.(\w+)", PAGE), *re.findall(r"from graphcache import (.*)", PAGE)[0].split(", ")}
    assert used - modules - {"errors", "__all__", "catalogs"} <= {*graphcache.__all__}
    with pytest.raises(AttributeError, match="no public name 'nothing'"):
        graphcache.nothing  # noqa: B018
    assert {*graphcache.__all__} <= {*dir(graphcache)}


def test_types_are_those_of_the_modules() -> None:
    """What `__getattr__` gives is what a type checker reads under TYPE_CHECKING."""
    text = Path(graphcache.__file__).read_text()
    for name, place in graphcache._PLACES.items():
        assert getattr(importlib.import_module(place), name) is getattr(graphcache, name)
        typed = re.search(rf"from {re.escape(place)} import (\([^)]*\)|[^\n]*)", text)
        assert typed is not None, place
        assert re.search(rf"\b{name}\b", typed[1]), name


def test_the_import_is_light() -> None:
    code = "import graphcache, sys; print([m for m in ('torch', 'numpy', 'xxhash', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PAGE_RUNNER = """
import doctest, sys
from pathlib import Path
test = doctest.DocTestParser().get_doctest(Path("page.txt").read_text(), {}, "library.md", "docs/library.md", 0)
sys.exit(1 if doctest.DocTestRunner().run(test).failed else 0)
"""


def test_the_page_has_lines_to_run() -> None:
    text = "\n".join(text for _, text in blocks("pycon"))
    assert len(doctest.DocTestParser().get_examples(text)) > 20


@pytest.mark.compiler
def test_each_line_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    for title, text in blocks("python"):
        (tmp_path / title).write_text(text)
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(MODEL / "config.json", model)
    shutil.copy(MODEL / "model.safetensors.header", model / "model.safetensors")
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(json.loads((MODEL / "size_bytes").read_text()))
    (tmp_path / "cache_manifests").symlink_to(ROOT / "cache_manifests")
    (tmp_path / "page.txt").write_text("\n".join(text for _, text in blocks("pycon")))
    # A process of its own: a fusion is fixed for good. A script: its folder is where the graphs' module is found.
    (tmp_path / "run_page.py").write_text(PAGE_RUNNER)
    command = [sys.executable, "run_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
