"""The recorded side of a diff: manifests as they lie in the work tree, or as they and the sources were at a revision.

Nothing of the work tree is touched for a revision: manifests and sources are read from git's objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphcache.key import Key
from graphcache.manifest.file import decode_manifest, read_manifest
from graphcache.manifest.manifest import Manifest, Recorded
from graphcache.manifest.text import ManifestMissingError
from graphcache.source.checkout import checkout
from graphcache.source.git import GitTree
from graphcache.source.hash import SourceError, SourceHashes, SourceMissingError
from graphcache.store.programs import Programs

FOLDER = "cache_manifests"


@dataclass(frozen=True)
class Baseline:
    """path: the manifest's file; manifest: what it says now; recorded: what it, and its sources, said then."""

    path: Path
    manifest: Manifest
    recorded: Manifest


def find_manifests(given: Sequence[Path], start: Path) -> list[Path]:
    """The manifests to compare: those that were given, else all in `cache_manifests/` of the checkout around `start`,
    which is the current folder.

    Raises ManifestMissingError when there is none.
    """
    if given:
        return list(given)
    folder = (checkout(start) or start) / FOLDER
    try:
        found = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        found = []
    if not found:
        raise ManifestMissingError(
            folder,
            "there are no manifests",
            hint="graphcache build --shapes-from MODEL --manifest FILE writes one; --manifest names one",
        )
    # As somebody who stands there would write them, so that the command that diff prints is short.
    near = folder.relative_to(start) if folder.is_relative_to(start) else folder
    return [near / name for name in found]


def of_work_tree(paths: Iterable[Path]) -> list[Baseline]:
    """Raises kinds of ManifestError."""
    return [Baseline(path, manifest, manifest) for path in paths for manifest in (read_manifest(path),)]


def of_revision(current: Iterable[Baseline], revision: str, programs: Programs, start: Path) -> list[Baseline]:
    """Manifests and sources at `revision` of the checkout around `start`.

    A manifest that was not there yet is taken as it is now, with the sources of then. Raises SourceError for a
    revision that is none and for what git cannot give, kinds of ManifestError.
    """
    repository = checkout(start)
    if repository is None:
        raise SourceError(f"{start} is in no git checkout", hint="--since reads sources from git: run it in a checkout")
    with GitTree(repository, revision) as then:
        sources = SourceHashes(then)
        return [
            replace(each, recorded=_with_sources(_manifest_then(then, each.path, each.manifest), sources, programs))
            for each in current
        ]


def _manifest_then(then: GitTree, path: Path, manifest: Manifest) -> Manifest:
    place = os.path.relpath(path.resolve(), then.repository.resolve())
    text = None if place.startswith("..") else then.text(Path(place).as_posix())
    return manifest if text is None else decode_manifest(text, f"{then.commit[:12]}:{place}")


def _with_sources(manifest: Manifest, sources: SourceHashes, programs: Programs) -> Manifest:
    """The manifest with the sources of another revision; a graph whose function was not there yet is left out."""
    found = [_with_source(each, manifest, sources, programs) for each in manifest.graphs]
    return replace(manifest, graphs=tuple(each for each in found if each is not None))


def _with_source(recorded: Recorded, manifest: Manifest, sources: SourceHashes, programs: Programs) -> Recorded | None:
    try:
        source = sources.of(recorded.made.function)
    except SourceMissingError:
        return None
    if source.digest == recorded.source.digest:
        return replace(recorded, source=source)
    torch = manifest.toolchain.get("torch", "")
    made = programs.settled(source.digest, recorded.made.without_recommended(), torch)
    program = programs.known(source.digest, made, torch)
    key = None if program is None else Key.of(program, manifest.toolchain, made.settings)
    return replace(recorded.with_made(made), source=source, program=program, key=key)
