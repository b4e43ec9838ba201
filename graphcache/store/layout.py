"""Where things lie in a store's folder, and which of them are there.

    objects/ab/<sha256>.safetensors                artifacts by digest
    entries/ab/<program>/<key digest>.json         what key has which object, with the facts of its compile
    failures/<key digest>.json                     the last failed compile of a key since its last commit
    programs/ab/<digest>.json                      which program a source exports to (`graphcache.programs`)
    set-aside/                                     what did not pass its check, for a look
    locks/, logs/                                  claims, and what builders' compilers printed

Nothing in a store holds an absolute path, so it can be renamed, moved, and reached through a symlink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphcache.key import Key
from graphcache.store.files import is_temporary, store_error

OBJECT_SUFFIX = ".safetensors"
RECORD_SUFFIX = ".json"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Layout:
    """The paths of a store in the folder `root`, which need not exist."""

    root: Path

    def entry(self, key: Key) -> Path:
        return self.program(key.program) / f"{key.digest}{RECORD_SUFFIX}"

    def program(self, program: str) -> Path:
        if not _DIGEST.fullmatch(program):
            raise ValueError(f"a program is a SHA-256 of 64 hexadecimal digits, not {program!r}")
        return self.root / "entries" / program[:2] / program

    def object(self, sha256: str) -> Path:
        return self.root / "objects" / sha256[:2] / f"{sha256}{OBJECT_SUFFIX}"

    def failure(self, key: Key) -> Path:
        return self.root / "failures" / f"{key.digest}{RECORD_SUFFIX}"

    def lock(self, key: Key) -> Path:
        return self.root / "locks" / key.digest

    @property
    def set_aside(self) -> Path:
        return self.root / "set-aside"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    # What is there: sorted, and without temporary files. Each raises StoreError for a folder that cannot be listed.

    def entry_files(self) -> Iterator[Path]:
        for shard in folders(self.root / "entries"):
            for program in folders(shard):
                yield from self.entry_files_of(program)

    def entry_files_of(self, program_folder: Path) -> Iterator[Path]:
        return (path for path in files(program_folder) if path.suffix == RECORD_SUFFIX and not is_temporary(path))

    def object_files(self) -> Iterator[Path]:
        for shard in folders(self.root / "objects"):
            yield from (path for path in files(shard) if path.suffix == OBJECT_SUFFIX and not is_temporary(path))

    def failure_files(self) -> Iterator[Path]:
        return (path for path in files(self.root / "failures") if not is_temporary(path))

    def temporary_files(self) -> Iterator[Path]:
        """What writes in progress, and killed ones, have left."""
        for top in ("entries", "objects", "failures", "programs"):
            yield from (path for path in _below(self.root / top) if is_temporary(path))

    def strays(self) -> Iterator[Path]:
        """What lies among objects and entries, but is neither, nor temporary: someone else put it there."""
        for top, depth, suffix in (("entries", 3, RECORD_SUFFIX), ("objects", 2, OBJECT_SUFFIX)):
            for path in _below(self.root / top):
                at_depth = len(path.relative_to(self.root / top).parts) == depth
                if not is_temporary(path) and not (at_depth and path.suffix == suffix):
                    yield path


def files(folder: Path) -> list[Path]:
    """Whatever in `folder` is no folder, sorted by name."""
    return [Path(entry.path) for entry in _scan(folder) if not entry.is_dir()]


def folders(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _scan(folder) if entry.is_dir()]


def _below(folder: Path) -> Iterator[Path]:
    yield from files(folder)
    for inner in folders(folder):
        yield from _below(inner)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error("list", folder, error) from error
