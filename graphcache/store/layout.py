"""Where things lie in a store's folder, and which of them are there.

    objects/ab/<sha256>.safetensors                artifacts by digest
    entries/ab/<program>/<key digest>.json         what key has which object, with the facts of its compile
    entries/ab/<program>/<key digest>.proof.json   whether that object computes the right thing
    failures/<key digest>.json                     the last failed compile of a key since its last commit
    programs/ab/<digest>.json                      which program a source exports to (`graphcache.store.programs`)
    signatures/ab/<sha256 of a record>.json        who signed that record (`graphcache.trust.signature`)
    quarantine/<name>.<8 digits>                   what did not pass its check, for a look
    builds/<64 digits>.json                        who compiled what (`graphcache.store.builds`)
    locks/<key digest>                             claims
    leases/<key digest>/<n>.json                   claims that other hosts see (`graphcache.remote.lease`)
    logs/<graph>-<32 digits>.log                   what builders' compilers printed

Nothing in a store holds an absolute path, so it can be renamed, moved, and reached through a symlink. Only names of
exactly these forms count: a folder named by mistake may have its own `logs` or `objects`, which are left alone.
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
VERDICT_SUFFIX = ".proof.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_RECORD = re.compile(r"[0-9a-f]{64}\.json")
_VERDICT = re.compile(r"[0-9a-f]{64}\.proof\.json")
_OBJECT = re.compile(r"[0-9a-f]{64}\.safetensors")
_QUARANTINED = re.compile(r"[0-9a-f]{64}\.(json|proof\.json|safetensors)\.[0-9a-f]{8}")
_LEASE = re.compile(r"\d{1,8}\.json", re.ASCII)
# Logs had 8 digits once. So have dates, so those logs cannot be told from others' files.
_LOG = re.compile(r".*-[0-9a-f]{32}\.log")
# The folders in which files of a store lie.
TOPS = ("builds", "entries", "failures", "leases", "locks", "logs", "objects", "programs", "quarantine", "signatures")


@dataclass(frozen=True)
class Layout:
    """The paths of a store in the folder `root`, which need not exist."""

    root: Path

    def entry(self, key: Key) -> Path:
        return self.program(key.program) / f"{key.digest}{RECORD_SUFFIX}"

    def verdict(self, key: Key) -> Path:
        """Beside the entry."""
        return self.program(key.program) / f"{key.digest}{VERDICT_SUFFIX}"

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
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    def new_log(self, graph: str) -> Path:
        """A name for the compiler's output of a graph that no other log has."""
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", graph).strip("-")[:80]
        return self.root / "logs" / f"{slug}-{os.urandom(16).hex()}.log"

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def is_entry(self, path: Path) -> bool:
        """Whether `path` is a place of an entry, by its form alone."""
        program, shard = path.parent, path.parent.parent
        names = _RECORD.fullmatch(path.name) and _DIGEST.fullmatch(program.name)
        return bool(names) and shard == self.root / "entries" / program.name[:2]

    def is_verdict(self, path: Path) -> bool:
        """The same of a verdict."""
        program, shard = path.parent, path.parent.parent
        names = _VERDICT.fullmatch(path.name) and _DIGEST.fullmatch(program.name)
        return bool(names) and shard == self.root / "entries" / program.name[:2]

    def is_program_file(self, path: Path) -> bool:
        """The same of a record of `graphcache.store.programs`."""
        return bool(_RECORD.fullmatch(path.name)) and path.parent == self.root / "programs" / path.name[:2]

    def is_object(self, path: Path) -> bool:
        return bool(_OBJECT.fullmatch(path.name)) and path.parent == self.root / "objects" / path.name[:2]

    def is_signature(self, path: Path) -> bool:
        return bool(_RECORD.fullmatch(path.name)) and path.parent == self.root / "signatures" / path.name[:2]

    def build(self, build_id: str) -> Path:
        return self.root / "builds" / f"{build_id}{RECORD_SUFFIX}"

    def is_build(self, path: Path) -> bool:
        return bool(_RECORD.fullmatch(path.name)) and path.parent == self.root / "builds"

    def is_lease(self, path: Path) -> bool:
        key = path.parent
        return bool(_LEASE.fullmatch(path.name) and _DIGEST.fullmatch(key.name)) and key.parent == self.root / "leases"

    # What is there: sorted, and without temporary files. Each raises StoreError for a folder that cannot be listed.

    def program_folders(self) -> Iterator[Path]:
        for shard in self._shards("entries"):
            yield from (path for path in folders(shard) if _DIGEST.fullmatch(path.name))

    def entry_files(self) -> Iterator[Path]:
        for program in self.program_folders():
            yield from self.entry_files_of(program)

    def entry_files_of(self, program_folder: Path) -> list[Path]:
        return _named(program_folder, _RECORD)

    def verdict_files(self) -> Iterator[Path]:
        for program in self.program_folders():
            yield from _named(program, _VERDICT)

    def object_files(self) -> Iterator[Path]:
        for shard in self._shards("objects"):
            yield from _named(shard, _OBJECT)

    def program_files(self) -> Iterator[Path]:
        for shard in self._shards("programs"):
            yield from _named(shard, _RECORD)

    def signature_files(self) -> Iterator[Path]:
        for shard in self._shards("signatures"):
            yield from _named(shard, _RECORD)

    def build_files(self) -> list[Path]:
        return _named(self.root / "builds", _RECORD)

    def failure_files(self) -> list[Path]:
        return _named(self.root / "failures", _RECORD)

    def quarantined_files(self) -> list[Path]:
        return _named(self.quarantine, _QUARANTINED)

    def lock_files(self) -> list[Path]:
        return _named(self.root / "locks", _DIGEST)

    def lease_files(self) -> list[Path]:
        keys = [path for path in folders(self.root / "leases") if _DIGEST.fullmatch(path.name)]
        return [path for key in keys for path in _named(key, _LEASE)]

    def log_files(self) -> list[Path]:
        return _named(self.root / "logs", _LOG)

    def temporary_files(self) -> Iterator[Path]:
        """What writes in progress, and killed ones, have left."""
        for top in TOPS:
            yield from (path for path in _below(self.root / top) if is_temporary(path))

    def strays(self) -> Iterator[Path]:
        """What lies in the store's folders, but is neither of the store's, nor temporary: someone else put it there."""
        kinds = (self.entry_files, self.failure_files, self.lock_files, self.log_files, self.object_files)
        more = (self.program_files, self.quarantined_files, self.signature_files, self.lease_files, self.verdict_files)
        own = {path for kind in (*kinds, *more, self.build_files) for path in kind()}
        for top in TOPS:
            yield from (path for path in _below(self.root / top) if path not in own and not is_temporary(path))

    def is_store(self) -> bool:
        """Whether the folder holds anything that a store is made of; a new one does from its first commit on."""
        kinds = (self.entry_files, self.object_files, self.program_files, self.failure_files)
        return any(path for kind in kinds for path in kind())

    def _shards(self, top: str) -> list[Path]:
        return [path for path in folders(self.root / top) if _SHARD.fullmatch(path.name)]


def _named(folder: Path, form: re.Pattern[str]) -> list[Path]:
    return [path for path in files(folder) if form.fullmatch(path.name)]


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
