"""Where source is read from: the work tree, or whatever is installed. `graphcache.source.git` reads git revisions.

A tree gives a module's text by its dotted name and imports nothing, so hashing needs neither torch nor the code's own
dependencies.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from graphcache.errors import GraphcacheError

# Where a repository may keep its top-level packages, tried in this order.
LAYOUTS = ("", "src/")


class SourceError(GraphcacheError):
    """Source that cannot be read, or whose reach cannot be determined."""

    name = "source"


class SourceMissingError(SourceError):
    """A graph's function that is not where the graph says."""

    name = "source-missing"


@dataclass(frozen=True)
class SourceFile:
    """A module's source. `path` is relative to the folder of its top-level package: `trainer/graphs/adamw.py`.

    A folder without an `__init__.py` is a package with an empty text.
    """

    module: str
    path: str
    is_package: bool
    text: bytes


class SourceTree(Protocol):
    def file(self, module: str) -> SourceFile | None:
        """The source of a module by its dotted name; None when there is none."""

    def submodules(self, package: str) -> list[str]:
        """Names of the modules and packages right inside a package, sorted."""

    def is_local(self, top_level: str) -> bool:
        """Whether a top-level package is edited where it lies, not installed from elsewhere."""


class WorkTree:
    """The modules that this interpreter would import, found without importing any."""

    def __init__(self) -> None:
        self._files: dict[str, SourceFile | None] = {}
        self._places: dict[str, list[str]] = {}

    def file(self, module: str) -> SourceFile | None:
        if module not in self._files:
            self._files[module] = self._read(module)
        return self._files[module]

    def submodules(self, package: str) -> list[str]:
        top_level, *rest = package.split(".")
        folders = [os.path.join(place, *rest) for place in self.places(top_level)]
        names = {name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)}
        found = {stem for name in names if (stem := module_name(name)) and self.file(f"{package}.{stem}")}
        return sorted(found)

    def is_local(self, top_level: str) -> bool:
        """False for the standard library and for folders that hold installed distributions (`*.dist-info`)."""
        if top_level in sys.stdlib_module_names:
            return False
        folders = [os.path.dirname(place) for place in self.places(top_level)]
        return bool(folders) and not any(_holds_distributions(folder) for folder in folders)

    def places(self, top_level: str) -> list[str]:
        """The folders of a top-level package, or its one file; empty when there is none."""
        if top_level not in self._places:
            self._places[top_level] = self._find(top_level)
        return self._places[top_level]

    def path(self, module: str) -> Path | None:
        """The file that holds a module; None when there is none, as for a folder without `__init__.py`."""
        file = self.file(module)
        if file is None:
            return None
        below = file.path.split("/")[1:]
        files = (Path(place, *below) for place in self.places(module.partition(".")[0]))
        return next((path for path in files if path.is_file()), None)

    def _find(self, top_level: str) -> list[str]:
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find_spec(top_level, None) if find_spec else None
            if spec is not None:
                return _places(spec)
        return []

    def _read(self, module: str) -> SourceFile | None:
        top_level, *rest = module.split(".")
        for place in self.places(top_level):
            if place.endswith(".py"):
                return None if rest else SourceFile(module, f"{top_level}.py", False, _read_file(place) or b"")
            found = _in_folder(module, os.path.join(place, *rest), "/".join([top_level, *rest]), bool(rest))
            if found is not None:
                return found
        return None


class FolderTree(WorkTree):
    """The modules that this interpreter would import if `folder` were first on its path.

    What is edited where it lies is as in `installed`, so that equal files have equal source hashes in both.
    """

    def __init__(self, folder: Path, installed: WorkTree) -> None:
        super().__init__()
        self._folder, self._installed = str(folder), installed

    def is_local(self, top_level: str) -> bool:
        return self._installed.is_local(top_level)

    def has(self, top_level: str) -> bool:
        """Whether the folder itself has a top-level package."""
        return bool(self._own(top_level))

    def _find(self, top_level: str) -> list[str]:
        return self._own(top_level) or self._installed.places(top_level)

    def _own(self, top_level: str) -> list[str]:
        return _places(importlib.machinery.PathFinder.find_spec(top_level, [self._folder]))


def module_name(name: str) -> str:
    """The module that a file or folder may hold; empty for one that cannot."""
    stem = name.removesuffix(".py")
    return stem if stem.isidentifier() and stem not in ("__init__", "__main__", "__pycache__") else ""


def _places(spec: importlib.machinery.ModuleSpec | None) -> list[str]:
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [os.path.abspath(place) for place in spec.submodule_search_locations]
    return [spec.origin] if spec.origin and spec.origin.endswith(".py") else []


def _holds_distributions(folder: str) -> bool:
    if os.path.basename(folder) in ("site-packages", "dist-packages"):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def _in_folder(module: str, stem: str, shown: str, may_be_file: bool) -> SourceFile | None:
    """The module at `stem` (its path without a suffix): a package, a file, or a folder without `__init__.py`."""
    text = _read_file(os.path.join(stem, "__init__.py"))
    if text is not None:
        return SourceFile(module, f"{shown}/__init__.py", True, text)
    text = _read_file(f"{stem}.py") if may_be_file else None
    if text is not None:
        return SourceFile(module, f"{shown}.py", False, text)
    return SourceFile(module, shown, True, b"") if os.path.isdir(stem) else None


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", hint="check the file's permissions") from error
