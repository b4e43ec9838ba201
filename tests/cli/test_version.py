"""`graphcache --version`: the release, and the commit where it is known."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version

import pytest

from cli.main import run
from cli.version import version_text


@pytest.fixture
def package(tmp_path):
    """The file of a package in a folder that is no checkout yet."""
    file = tmp_path / "graphcache" / "__init__.py"
    file.parent.mkdir()
    file.write_text("")
    return file


def git(folder, *args):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


def test_the_command_names_release_and_commit(capsys):
    assert run(["--version"]) == 0
    assert re.fullmatch(
        rf"graphcache {re.escape(version('graphcache'))}( \(commit \w{{7,}}(, edited)?\))?\n", capsys.readouterr().out
    )


def test_what_lies_in_no_checkout_has_its_release_alone(package):
    assert version_text(package) == version("graphcache")


def test_a_checkout_has_its_commit_and_says_when_it_is_edited(package, tmp_path):
    git(tmp_path, "init", "-q")
    assert version_text(package) == version("graphcache"), "it has no commit yet"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    assert re.search(r"\(commit \w{12}\)$", version_text(package))
    package.write_text("edited = True\n")
    assert version_text(package).endswith(", edited)")


def test_another_projects_checkout_says_nothing(tmp_path):
    git(tmp_path, "init", "-q")
    file = tmp_path / ".venv" / "graphcache" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    assert version_text(file) == version("graphcache")
