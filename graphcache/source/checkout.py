"""Checkouts: the one around a folder, and whether this process hashes the sources that are there.

They differ when a second checkout (a worktree, a reviewer's clone) lies beside the installed one: the `graphcache`
command imports what is installed, while the manifests and the edits in question are in the current folder. Equal
copies, such as the one that `pip install .` makes, count as the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from graphcache.source.hash import SourceHashes
from graphcache.source.tree import LAYOUTS, FolderTree, SourceError, WorkTree

# A folder with one of these is what `pip install` takes.
_PROJECT = ("pyproject.toml", "setup.py")


class SourceElsewhereError(SourceError):
    """The question is about one checkout, and Python imports graphs from another."""

    name = "source-elsewhere"


def checkout(start: Path) -> Path | None:
    """The git work tree that holds `start`, found without git."""
    start = start.absolute()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def check_sources(functions: Iterable[str], starts: Iterable[Path]) -> None:
    """Raises SourceElsewhereError when a folder of `starts` lies in a checkout with a function of which it has another
    source than this process would import.

    functions: of graphs and catalogs, `package.module:name`. A checkout without their modules (another project's,
    which keeps manifests only) cannot be the one that is meant.
    """
    names, installed = sorted(set(functions)), _Sources(WorkTree())
    there: dict[Path, _Sources] = {}
    for start in dict.fromkeys(Path(os.path.realpath(start)) for start in starts):
        for function in names:
            folder = _import_folder(function.partition(":")[0], start, installed.tree)
            if folder is not None:
                here = there.setdefault(folder, _Sources(FolderTree(folder, installed.tree)))
                _compare(function, here, installed, folder, start)


class _Sources:
    """What functions of a tree are."""

    def __init__(self, tree: WorkTree) -> None:
        self.tree = tree
        self._hashes = SourceHashes(tree)

    def of(self, function: str) -> object:
        """The source hash's digest; where it cannot be told, why, with the file of the function's module."""
        try:
            return self._hashes.of(function).digest
        except SourceError as error:
            return error.message, self.tree.file(function.partition(":")[0])


def _import_folder(module: str, start: Path, installed: WorkTree) -> Path | None:
    """The folder that `module` would be imported from by somebody who works in `start`: the nearest above it that has
    its file, in no other checkout or project; None when there is none."""
    root = _root(start)
    for folder in (start, *start.parents):
        for place in dict.fromkeys(folder / layout for layout in LAYOUTS):
            tree = FolderTree(place, installed)
            if tree.has(module.partition(".")[0]) and tree.path(module):
                return place
        if folder == root:
            break
    return None


def _root(start: Path) -> Path:
    """The checkout or, without git, the project around `start`; else `start` itself."""
    return checkout(start) or _project(start) or start


def _project(start: Path) -> Path | None:
    places = (start, *start.parents)
    return next((folder for folder in places if any((folder / name).is_file() for name in _PROJECT)), None)


def _compare(function: str, here: _Sources, installed: _Sources, folder: Path, start: Path) -> None:
    module = function.partition(":")[0]
    ours, theirs = here.tree.path(module), installed.tree.path(module)
    if ours is None or theirs is None or os.path.samefile(ours, theirs):
        return
    if here.of(function) != installed.of(function):
        raise SourceElsewhereError(
            f"{function} is imported from {theirs}, and {start} lies in a checkout with another source of it, {ours}",
            hint=_hint(folder, _root(start)),
        )


def _hint(folder: Path, root: Path) -> str:
    import shlex

    by_path = f"`PYTHONPATH={shlex.quote(str(folder))} graphcache ...` takes that checkout's"
    project = _project(folder)
    if project is None or not project.is_relative_to(root):
        return by_path
    return f"{by_path}, and so does `pip install -e {shlex.quote(str(project))}` before"
