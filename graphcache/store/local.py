"""The store on plain files: a local disk, or a folder that pods share over NFS.

    objects/ab/<sha256>.safetensors                artifacts by digest
    entries/ab/<program>/<key digest>.json         what key has which object, with the facts of its compile
    failures/<key digest>.json                     the last failed compile of a key since its last commit
    set-aside/                                     what did not pass its check, for a look
    locks/, logs/                                  claims, and what builders' compilers printed

An object is written before the entry that names it, and the first commit of a key wins, so every reader sees one
consistent pair or none. `docs/store.md` has the formats, `docs/trust.md` what is checked when.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from graphcache.artifact import Artifact
from graphcache.digest import checksum
from graphcache.errors import CorruptError
from graphcache.key import Key
from graphcache.store.base import Entry, Facts, Failure, Fault, Object
from graphcache.store.files import make_folder, store_error, write_file
from graphcache.store.lock import claim

# An entry is 2 KB; what is far larger is none, and need not be read to know.
RECORD_LIMIT_BYTES = 1 << 20

_BAD_MEDIUM = (errno.EIO, errno.ESTALE, errno.EISDIR, errno.EUCLEAN)


class LocalStore:
    """A store in the folder `root`, which need not exist before the first commit.

    Nothing in it holds an absolute path, so it can be renamed, moved, and reached through a symlink.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.faults: list[Fault] = []

    def entry_path(self, key: Key) -> Path:
        return self._program_folder(key.program) / f"{key.digest}.json"

    def object_path(self, sha256: str) -> Path:
        return self.root / "objects" / sha256[:2] / f"{sha256}.safetensors"

    def failure_path(self, key: Key) -> Path:
        return self.root / "failures" / f"{key.digest}.json"

    @property
    def log_folder(self) -> Path:
        return self.root / "logs"

    # Reading

    def lookup(self, key: Key) -> Entry | None:
        """The entry of `key`, when all its parts are equal and its object passes its checksum.

        The object is read too, because a build that found it whole without looking would never repair it.
        """
        entry = self._read_entry(self.entry_path(key))
        # A digest alone could collide; the parts cannot.
        if entry is None or entry.key != key:
            return None
        try:
            self.open(entry)
        except CorruptError:
            return None
        return entry

    def by_program(self, program: str) -> list[Entry]:
        """Entries of `program`, sorted by key digest."""
        if not re.fullmatch(r"[0-9a-f]{64}", program):
            raise ValueError(f"a program is a SHA-256 of 64 hexadecimal digits, not {program!r}")
        return list(self._entries_in(self._program_folder(program)))

    def entries(self) -> Iterator[Entry]:
        """All entries, sorted by program and key digest."""
        for folder in self._folders(self.root / "entries"):
            for program in self._folders(folder):
                yield from self._entries_in(program)

    def open(self, entry: Entry) -> Artifact:
        """The checked artifact of `entry`; a bad one is set aside together with its entry.

        Raises CorruptError when it is bad or gone, StoreError when it cannot be told.
        """
        path = self.object_path(entry.object.sha256)
        try:
            data = self._read(path, exactly_bytes=entry.object.size_bytes)
            if data is None:
                raise CorruptError("its object is gone")
            return check_object(entry, data)
        except CorruptError as error:
            self._fault(path, str(error), lambda data: check_object(entry, data))
            self._fault(self.entry_path(entry.key), f"entry of {path.name}: {error}", None)
            raise CorruptError(
                f"{entry.graph.name}: {path.name}: {error}", hint="the next build compiles it again"
            ) from error

    def failure(self, key: Key) -> Failure | None:
        found = self._read_failure(self.failure_path(key))
        return found if found is not None and found.key == key else None

    def failures(self) -> list[Failure]:
        """All failure records, sorted by graph name, then key digest."""
        found = [self._read_failure(path) for path in self._files(self.root / "failures", ".json")]
        return sorted((f for f in found if f is not None), key=lambda f: (f.graph, f.key.digest))

    # Writing

    def commit(self, key: Key, data: bytes, facts: Facts) -> Entry:
        """Adds the artifact `data` under `key`; returns the entry that is in the store afterwards.

        The first commit wins: when a whole pair of `key` is there already, it stays and is returned.
        Raises CorruptError for data that is no artifact of `key`, StoreError when it cannot be written.
        """
        if Artifact.parse(data).key != key:
            raise CorruptError(f"{facts.graph.name}: the artifact was made for another key than {key.digest}")
        return self.adopt(Entry(key, Object.of(data), facts, utc_now()), data)

    def adopt(self, entry: Entry, data: bytes) -> Entry:
        """Adds a pair that exists already, from another store: `commit` with the entry as it was there."""
        check_object(entry, data)
        found = self.lookup(entry.key)
        if found is None:
            found = self._place(entry, data)
        self.clear_failure(entry.key)
        return found

    def record_failure(self, failure: Failure) -> None:
        if os.path.isabs(failure.log):
            raise ValueError(f"a log is named relative to the store, which may move; not {failure.log!r}")
        write_file(self.failure_path(failure.key), failure.encode(), replace=True)

    def clear_failure(self, key: Key) -> None:
        path = self.failure_path(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise store_error("remove", path, error) from error

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        """Says whether nobody else is known to compile `key`. Only saves duplicate work."""
        return claim(self.root / "locks" / key.digest)

    # Inside

    def _place(self, entry: Entry, data: bytes) -> Entry:
        target, named = self.object_path(entry.object.sha256), self.entry_path(entry.key)
        # Even if it is there: a new file is young, so gc leaves it alone until the entry names it.
        write_file(target, data, replace=True)
        if not write_file(named, entry.encode(), replace=False):
            winner = self.lookup(entry.key)
            if winner is not None:
                return winner
            # What lies there is bad and could not be moved, or is of a key whose digest collides.
            write_file(named, entry.encode(), replace=True)
        # gc takes an object away, then looks for entries; we wrote the entry, now we look for the object: one of the
        # two sees the other.
        if not target.exists():
            write_file(target, data, replace=True)
        return entry

    def _program_folder(self, program: str) -> Path:
        return self.root / "entries" / program[:2] / program

    def _entries_in(self, folder: Path) -> Iterator[Entry]:
        for path in self._files(folder, ".json"):
            entry = self._read_entry(path)
            if entry is not None:
                yield entry

    def _read_entry(self, path: Path) -> Entry | None:
        try:
            data = self._read(path)
            return None if data is None else self._decode_entry(path, data)
        except CorruptError as error:
            self._fault(path, str(error), lambda data: self._decode_entry(path, data))
            return None

    def _decode_entry(self, path: Path, data: bytes) -> Entry:
        entry = Entry.decode(data)
        if self.entry_path(entry.key) != path:
            raise CorruptError(f"an entry whose place is {self._relative(self.entry_path(entry.key))}")
        return entry

    def _read_failure(self, path: Path) -> Failure | None:
        try:
            data = self._read(path)
            return None if data is None else Failure.decode(data)
        except CorruptError as error:
            self._fault(path, str(error), Failure.decode)
            return None

    def _read(self, path: Path, exactly_bytes: int | None = None) -> bytes | None:
        """The file's bytes, None when there is none. Raises CorruptError, StoreError."""
        try:
            return read_file(path, exactly_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _BAD_MEDIUM:
                raise CorruptError(f"cannot be read: {error.strerror}") from error
            raise store_error("read", path, error) from error

    def _files(self, folder: Path, suffix: str) -> list[Path]:
        return [folder / name for name in self._names(folder) if name.endswith(suffix) and not name.startswith(".")]

    def _folders(self, folder: Path) -> list[Path]:
        return [folder / name for name in self._names(folder) if re.fullmatch(r"[0-9a-f]+", name)]

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise store_error("list", folder, error) from error

    def _fault(self, path: Path, problem: str, check: Callable[[bytes], object] | None) -> None:
        moved = self._move_aside(path, check)
        self.faults.append(Fault(self._relative(path), problem, moved))

    def _move_aside(self, path: Path, check: Callable[[bytes], object] | None) -> str | None:
        """Moves a bad file out of the way; None when it is gone or the store cannot be written."""
        target = self.root / "set-aside" / f"{path.name}.{uuid.uuid4().hex[:8]}"
        try:
            make_folder(target.parent)
            os.rename(path, target)
        except OSError:
            return None
        if check is not None and self._passes(target, check):
            # Someone had put a good one in its place since we read it.
            self._put_back(target, path)
            return None
        return self._relative(target)

    def _passes(self, path: Path, check: Callable[[bytes], object]) -> bool:
        try:
            check(read_file(path))
        except (CorruptError, OSError):
            return False
        return True

    def _put_back(self, source: Path, path: Path) -> None:
        try:
            os.rename(source, path)
        except OSError as error:
            raise store_error("put back", path, error) from error

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def check_object(entry: Entry, data: bytes) -> Artifact:
    """The artifact in `data`, when it is the one that `entry` names. Raises CorruptError.

    By XXH3-128 here, on every load; `graphcache verify` compares the SHA-256.
    """
    if len(data) != entry.object.size_bytes:
        raise CorruptError(f"an object of {len(data)} bytes where the entry says {entry.object.size_bytes}")
    if checksum(data) != entry.object.xxh3_128:
        raise CorruptError("an object whose XXH3 is not the entry's")
    artifact = Artifact.parse(data)
    if artifact.key != entry.key:
        raise CorruptError("an object that was made for another key")
    return artifact


def read_file(path: Path, exactly_bytes: int | None = None) -> bytes:
    """The bytes of a regular file. Raises OSError; CorruptError for what is none or has another size."""
    # Without O_NONBLOCK a pipe under this name would be waited for.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptError("not a regular file")
        if exactly_bytes is None and status.st_size > RECORD_LIMIT_BYTES:
            raise CorruptError(f"a record of {status.st_size:,} bytes, above the limit of {RECORD_LIMIT_BYTES:,}")
        if exactly_bytes is not None and status.st_size != exactly_bytes:
            raise CorruptError(f"{status.st_size:,} bytes where the entry says {exactly_bytes:,}")
        return file.read()


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
