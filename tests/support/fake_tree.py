"""Source trees that exist in memory alone."""

from __future__ import annotations

from graphcache.source.hash import SourceHash, SourceHashes
from graphcache.source.tree import SourceFile


class FakeTree:
    """A source tree of `path -> text`; the packages named in `installed` are somebody else's."""

    def __init__(self, files: dict[str, str], installed: tuple[str, ...] = ()) -> None:
        self._files, self._installed = files, installed

    def file(self, module: str) -> SourceFile | None:
        stem = module.replace(".", "/")
        for path, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if path in self._files:
                return SourceFile(module, path, is_package, self._files[path].encode())
        inside = any(path.startswith(f"{stem}/") for path in self._files)
        return SourceFile(module, stem, True, b"") if inside else None

    def submodules(self, package: str) -> list[str]:
        stem = package.replace(".", "/") + "/"
        inside = (path.removeprefix(stem) for path in self._files if path.startswith(stem))
        return sorted({path.partition("/")[0].removesuffix(".py") for path in inside} - {"__init__"})

    def is_local(self, top_level: str) -> bool:
        return top_level not in self._installed and self.file(top_level) is not None


def hash_of(files: dict[str, str], function: str = "pkg.graphs:step", installed: tuple[str, ...] = ()) -> SourceHash:
    """The source hash of `function` in a tree of `files`."""
    return SourceHashes(FakeTree(files, installed)).of(function)
