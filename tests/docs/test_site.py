"""The docs as a site: each link leads somewhere, each public name is explained, each page is in the menu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphcache

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_each_public_name_is_explained(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name, place in graphcache._PLACES.items():
        assert f'id="{place}.{name}"' in page, name
    assert "Raises MissingGraphsError" in page, "the docstrings are there"


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    asked = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"')
    for page in site.rglob("*.html"):
        found = [url for url in asked.findall(page.read_text()) if "canonical" not in url]
        assert not found, (page.name, found)


def test_each_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}\n" in menu, page
