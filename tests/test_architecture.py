"""docs/architecture.md is the table of contents: it names every folder, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
# "At most" of the listing that a newcomer reads first.
MOST_MODULES = {"graphcache": 16, "trainer": 12}


def rows(package: str) -> dict[str, str]:
    """The table of a package's folders: name, and the line on it."""
    table = TEXT.partition(f"| `{package}/` | holds |\n|---|---|\n")[2].partition("\n\n")[0]
    return {name.strip("` "): text for _, name, text, _ in (line.split("|") for line in table.splitlines())}


@pytest.mark.parametrize("package", MOST_MODULES)
def test_every_folder_has_a_line(package: str) -> None:
    folders = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py")}
    assert set(rows(package)) == {"root", *folders}


@pytest.mark.parametrize("package", MOST_MODULES)
def test_the_modules_that_a_line_names_are_there(package: str) -> None:
    for folder, text in rows(package).items():
        for name in re.findall(r"`(\w+\.py)`", text):
            assert (ROOT / package / folder.removeprefix("root") / name).is_file(), (folder, name)


@pytest.mark.parametrize(("package", "most"), MOST_MODULES.items())
def test_a_packages_root_is_short(package: str, most: int) -> None:
    assert len([path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]) <= most


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_paths_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`((?:graphcache|trainer|cli|tests)/[\w/.-]*?)(?:::[\w.]+)?`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
