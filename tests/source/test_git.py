"""Sources at git revisions: links, other roots, and what git cannot give."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from graphcache.source.git import GitTree
from graphcache.source.hash import SourceError, SourceHash, SourceHashes
from graphcache.source.tree import WorkTree

FUNCTION = "demo_pkg.graphs:step"
GRAPHS = "from demo_pkg.helper import K\nfrom helper_pkg import L\n\n\ndef step(x):\n    return x * K * L\n"


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, "-c", "protocol.file.allow=always", *args]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def package(folder: Path, **modules: str) -> None:
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (folder / f"{name}.py").write_text(text)


def commit(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def work_hash() -> SourceHash:
    return SourceHashes(WorkTree()).of(FUNCTION)


def git_hash(repository: Path) -> SourceHash:
    with GitTree(repository, "HEAD") as tree:
        return SourceHashes(tree).of(FUNCTION)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages under two roots, neither of them the repository itself."""
    folder = tmp_path / "repository"
    package(folder / "python" / "demo_pkg", graphs=GRAPHS, helper="K = 1\n")
    package(folder / "libs" / "helper_pkg")
    (folder / "libs" / "helper_pkg" / "__init__.py").write_text("L = 2\n")
    for root in ("python", "libs"):
        monkeypatch.syspath_prepend(folder / root)
    return folder


def test_a_package_under_another_root_is_followed(repository: Path) -> None:
    commit(repository)
    found = git_hash(repository)
    assert "helper_pkg/__init__.py::L" in found.parts
    assert found == work_hash()


def test_linked_modules_and_packages_are_followed(repository: Path) -> None:
    (repository / "python" / "demo_pkg").rename(repository / "python" / "real")
    (repository / "python" / "demo_pkg").symlink_to("real")
    (repository / "python" / "real" / "helper.py").rename(repository / "numbers.txt")
    (repository / "python" / "real" / "helper.py").symlink_to("../../numbers.txt")
    commit(repository)
    found = git_hash(repository)
    assert "demo_pkg/helper.py::K" in found.parts
    assert found == work_hash()


def test_a_whole_linked_package_is_the_same_from_both(repository: Path) -> None:
    (repository / "python" / "demo_pkg").rename(repository / "python" / "real")
    (repository / "python" / "demo_pkg").symlink_to("real")
    text = "import demo_pkg\n\n\ndef step(x):\n    return vars(demo_pkg)['helper'].K\n"
    (repository / "python" / "real" / "graphs.py").write_text(text)
    commit(repository)
    found = git_hash(repository)
    assert "demo_pkg/helper.py::*" in found.parts
    assert found == work_hash()


def test_a_link_out_of_the_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "python" / "demo_pkg" / "helper.py").rename(tmp_path / "helper.py")
    (repository / "python" / "demo_pkg" / "helper.py").symlink_to(tmp_path / "helper.py")
    commit(repository)
    with pytest.raises(SourceError, match=r"helper\.py at .* leads out of the repository"):
        git_hash(repository)


@pytest.mark.parametrize("name", ["libs", "libs/helper_pkg"])
def test_a_submodule_is_refused_and_not_taken_for_a_library(repository: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    (repository / name).rename(other)
    commit(other)
    commit(repository)
    git(repository, "submodule", "--quiet", "add", str(other), name)
    git(repository, "commit", "-qm", "submodule")
    assert "helper_pkg/__init__.py::L" in work_hash().parts
    with pytest.raises(SourceError, match=f"{name} is a submodule"):
        git_hash(repository)


def test_a_partial_clone_whose_origin_is_gone_says_what_git_says(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository)
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{repository}", str(clone))
    repository.rename(tmp_path / "gone")
    for root in ("python", "libs"):
        monkeypatch.syspath_prepend(tmp_path / "gone" / root)
    with pytest.raises(SourceError, match=r"git cannot give .*demo_pkg"), GitTree(clone, "HEAD") as tree:
        tree.text("python/demo_pkg/graphs.py")


def test_what_git_says_against_a_repository_is_the_reason(repository: Path) -> None:
    """A checkout of another user is such a case: git names the setting that would allow it."""
    commit(repository)
    (repository / ".git" / "config").write_text("[core")
    with pytest.raises(SourceError, match=r"git cannot read .*: .*bad config line"):
        GitTree(repository, "HEAD")


def test_a_checkout_of_another_user_is_named_with_gits_hint(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repository)
    # git's own switch for testing this.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(SourceError, match="dubious ownership") as caught:
        GitTree(repository, "HEAD")
    assert "safe.directory" in caught.value.hint
