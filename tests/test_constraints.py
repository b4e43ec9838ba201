"""constraints.txt and the Dockerfile against the repository: what CI and images install is what was tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    found = dict(line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in found.items()}


def requirements() -> list[Requirement]:
    """What CI installs, that is all extras."""
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]
    return [each for each in map(Requirement, named) if each.name != PROJECT["name"]]


def test_everything_that_ci_installs_is_pinned_to_a_version_that_pyproject_allows():
    pinned = pins()
    for requirement in requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement}: pip would look for a version, release by release"
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"


def test_the_image_copies_and_installs_what_there_is():
    text = (ROOT / "Dockerfile").read_text()
    copied = [source for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for source in line.split()[:-1]]
    assert {"constraints.txt", "graphcache", "trainer", "cli"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
    (extras,) = re.findall(r"'\.\[(.+)\]'", text)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
