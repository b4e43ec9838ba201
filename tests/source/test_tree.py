"""Sources from the work tree and from git: found without importing anything, and the same hash from both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.source.git import GitTree
from graphcache.source.hash import SourceError, SourceHashes, SourceMissingError
from graphcache.source.tree import WorkTree

FUNCTION = "demo_pkg.graphs:step"
# Importing it would fail, and would say so.
GRAPHS = "from demo_pkg.helper import K\n\nif K:\n    raise RuntimeError\n\n\ndef step(x):\n    return x * K\n"


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with the package demo_pkg, which is importable, in its commit `first`."""
    return _repository(tmp_path, monkeypatch, "")


def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> Path:
    package = tmp_path / root / "demo_pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "graphs.py").write_text(GRAPHS)
    (package / "helper.py").write_text("K = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "first")
    monkeypatch.syspath_prepend(tmp_path / root)
    return tmp_path


def work_hash():
    return SourceHashes(WorkTree()).of(FUNCTION)


def git_hash(repository, revision="HEAD"):
    with GitTree(repository, revision) as tree:
        return SourceHashes(tree).of(FUNCTION)


def test_nothing_is_imported(repository):
    assert list(work_hash().parts) == [
        "demo_pkg/graphs.py::<module>",
        "demo_pkg/graphs.py::step",
        "demo_pkg/helper.py::K",
    ]
    assert not [name for name in sys.modules if name.startswith("demo_pkg")]


def test_git_and_work_tree_agree(repository):
    assert git_hash(repository) == work_hash()


def test_a_revision_is_read_without_touching_the_work_tree(repository):
    before = work_hash()
    (repository / "demo_pkg" / "helper.py").write_text("K = 2\n")
    assert work_hash().digest != before.digest
    assert git_hash(repository, "first") == before
    assert git(repository, "status", "--porcelain") == " M demo_pkg/helper.py\n"


@pytest.mark.parametrize("root", ["src", "deep/python"])
def test_packages_may_lie_in_a_folder_of_the_repository(tmp_path, monkeypatch, root):
    repository = _repository(tmp_path, monkeypatch, root)
    assert git_hash(repository) == work_hash()


def test_a_folder_without_init_is_a_package(repository):
    (repository / "demo_pkg" / "__init__.py").unlink()
    git(repository, "commit", "-qam", "no init")
    assert git_hash(repository) == work_hash()


def test_a_whole_package_is_the_same_from_both(repository):
    text = "import demo_pkg\n\n\ndef step(x):\n    return vars(demo_pkg)['helper'].K\n"
    (repository / "demo_pkg" / "graphs.py").write_text(text)
    git(repository, "commit", "-qam", "dynamic")
    assert "demo_pkg/helper.py::*" in work_hash().parts
    assert git_hash(repository) == work_hash()


@pytest.mark.parametrize("revision", ["nothing-like-it", "HEAD:demo_pkg", ""])
def test_a_revision_that_is_none_is_an_error(repository, revision):
    with pytest.raises(SourceError, match="is no revision"):
        GitTree(repository, revision)


def test_without_git_the_error_says_so(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SourceError, match="git is not installed"):
        GitTree(repository, "HEAD")


def test_a_module_that_a_revision_lacks_is_missing(repository):
    git(repository, "rm", "-q", "demo_pkg/graphs.py")
    git(repository, "commit", "-qm", "gone")
    with pytest.raises(SourceMissingError, match=FUNCTION):
        git_hash(repository)
    assert git_hash(repository, "first").parts


def test_a_file_that_cannot_be_read_is_an_error(repository, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("graphcache.source.tree.open", refuse, raising=False)
    with pytest.raises(SourceError, match=r"cannot read .*demo_pkg.*: Permission denied"):
        work_hash()


def test_local_is_what_is_edited_where_it_lies(repository, tmp_path, monkeypatch):
    target = tmp_path / "target"
    (target / "laid_over").mkdir(parents=True)
    (target / "laid_over" / "__init__.py").write_text("")
    (target / "laid_over-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(target)
    tree = WorkTree()
    assert tree.is_local("demo_pkg")
    assert not tree.is_local("laid_over")
    assert not tree.is_local("pytest")
    assert not tree.is_local("json")
    assert not tree.is_local("sys")
    assert not tree.is_local("no_such_package")


def test_the_graphs_of_this_repository_agree_with_git_when_it_is_clean():
    checkout = Path(__file__).parents[2]
    folder = "trainer/graphs/adamw.py"
    if not (checkout / ".git").exists() or git(checkout, "status", "--porcelain", folder):
        pytest.skip("not a clean checkout")
    function = "trainer.graphs.adamw:adamw"
    with GitTree(checkout, "HEAD") as tree:
        assert SourceHashes(tree).of(function) == SourceHashes(WorkTree()).of(function)
