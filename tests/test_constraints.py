"""constraints.txt and the Dockerfile against the repository: what CI and images install is what was tested."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from graphcache.jobs.kubernetes import USER

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
    """By a parser of Dockerfiles: continued lines, comments and both forms of COPY."""
    parsed = DockerfileParser(fileobj=io.BytesIO((ROOT / "Dockerfile").read_bytes()))
    steps = [(step["instruction"], step["value"]) for step in parsed.structure]
    assert {name for name, _ in steps} <= {"COMMENT", "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "CMD"}
    assert parsed.baseimage == "python:3.11-slim-bookworm"
    copied = [source for name, value in steps if name == "COPY" for source in value.split()[:-1]]
    assert {"constraints.txt", "graphcache", "trainer", "cli"} <= set(copied)
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("!")]
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source not in ignored, f"{source} is kept out of the build's context"
    installs = [value for name, value in steps if name == "RUN" and "pip install" in value]
    assert any("-c constraints.txt" in value for value in installs)
    (extras,) = re.findall(r"'\.\[(.+?)\]'", " ".join(installs))
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert [value for name, value in steps if name == "USER"] == [str(USER)], "as the printed Jobs run it"
