"""Sources at git revisions: links, other roots, and what git cannot give."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize(
    "name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"]
)
def test_the_environment_of_a_hook_does_not_lead_to_another_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commit(repository)
    found = git_hash(repository)
    other = tmp_path / "other"
    package(other / "python" / "demo_pkg", graphs="def step(x):\n    return x\n")
    commit(other)
    place = {"GIT_WORK_TREE": "", "GIT_INDEX_FILE": ".git/index", "GIT_OBJECT_DIRECTORY": ".git/objects"}
    monkeypatch.setenv(name, str(other / place.get(name, ".git")))
    assert git_hash(repository) == found


def test_what_git_says_of_its_work_is_no_trouble(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repository)
    monkeypatch.setenv("GIT_TRACE", "1")
    with pytest.raises(SourceError, match="'nosuch' is no revision of"):
        GitTree(repository, "nosuch")


def test_the_identity_that_git_was_told_by_its_environment_is_kept(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "no-such-value")
    with pytest.raises(SourceError, match="no-such-value"):
        GitTree(repository, "HEAD")


def test_a_shallow_clone_is_named(repository: Path, tmp_path: Path) -> None:
    commit(repository)
    first = git(repository, "rev-parse", "HEAD").strip()
    (repository / "more").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "clone")
    with pytest.raises(SourceError, match="is no revision of") as error:
        GitTree(tmp_path / "clone", first)
    assert "shallow clone" in error.value.hint
    assert "git fetch --unshallow" in error.value.hint
    with GitTree(tmp_path / "clone", "HEAD"):
        pass


def test_under_an_ignored_sigchld_no_revision_is_the_index(repository: Path) -> None:
    """A library's caller may have it so: then every exit code is 0."""
    commit(repository)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SourceError, match="'nosuch' is no revision of"):
            GitTree(repository, "nosuch")
    finally:
        signal.signal(signal.SIGCHLD, before)
