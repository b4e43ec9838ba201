"""Checkouts: the one around a folder, and whether the sources that this process hashes are the ones that lie there.

A second checkout (a worktree, a reviewer's clone) beside the installed one is where they part: the `graphcache` command
imports what is installed, while the manifests, and the edits that are asked about, are those of the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from graphcache.source_tree import LAYOUTS, SourceError, WorkTree


class SourceElsewhereError(SourceError):
    """Graphs of one checkout asked about, and those of another one imported."""

    name = "source-elsewhere"


def checkout(start: Path) -> Path | None:
    """The git work tree that holds `start`, found without git."""
    start = start.absolute()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)


def check_sources(functions: Iterable[str], starts: Iterable[Path]) -> None:
    """Raises SourceElsewhereError when a folder of `starts`, or one above it, has a graph's module and this process
    would import another file for it.

    functions: of graphs, `package.module:name`. A folder without these modules (another project's, which keeps
    manifests only) is none that could be meant.
    """
    tree = WorkTree()
    modules = sorted({function.partition(":")[0] for function in functions})
    for start in dict.fromkeys(Path(os.path.realpath(start)) for start in starts):
        for module in modules:
            _check(module, start, tree)


def _check(module: str, start: Path, tree: WorkTree) -> None:
    top_level, *rest = module.split(".")
    theirs = _first_file(Path(place.removesuffix(".py"), *rest) for place in tree.places(top_level))
    for folder in (start, *start.parents):
        ours = _first_file(Path(folder, layout, top_level, *rest) for layout in LAYOUTS)
        if ours is None or theirs is None:
            continue
        if os.path.samefile(ours, theirs):
            return
        root = ours.parents[len(rest) + (ours.name == "__init__.py")]
        raise SourceElsewhereError(
            f"{module} is imported from {theirs}, and {start} lies in a checkout that has it as {ours}",
            hint=f"use that checkout's: `python -m cli.main ...` in {root}, or `pip install -e {folder}` before",
        )


def _first_file(stems: Iterable[Path]) -> Path | None:
    """The file of the first of these modules, given by paths without a suffix, that is there."""
    files = (file for stem in stems for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"))
    return next((file for file in files if file.is_file()), None)
