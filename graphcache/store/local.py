"""The store on plain files: a local disk, or a folder that pods share over NFS.

An object is written before the entry that names it, and the first commit of a key wins, so every reader sees one
consistent pair or none, whatever is killed and whether locks work or not. `graphcache.store.layout` has the folders,
`docs/store.md` the formats, `docs/trust.md` what is checked when.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

from graphcache.artifact import Artifact
from graphcache.errors import CorruptError
from graphcache.key import Key
from graphcache.proof.verdict import Verdict
from graphcache.store.access import make_private
from graphcache.store.base import Entry, Facts, Failure, Fault, Object, Wanted
from graphcache.store.builds import BuildRecord
from graphcache.store.files import store_error, write_file
from graphcache.store.layout import OBJECT_SUFFIX, Layout
from graphcache.store.lock import claim
from graphcache.store.quarantine import move_to_quarantine
from graphcache.store.reading import check_name, check_object, read_file
from graphcache.trust.guard import Guard, forget_signature, keep_signature, kept_signature, signer_of

_log = logging.getLogger(__name__)
_BAD_MEDIUM = (errno.EIO, errno.ESTALE, errno.EISDIR, errno.EUCLEAN)

Record = TypeVar("Record")


class LocalStore:
    """A store in the folder `root`, which need not exist before the first commit.

    guard: signs what is committed, and refuses what is not signed, as far as it is told to
    """

    def __init__(self, root: str | os.PathLike[str], guard: Guard | None = None) -> None:
        self.root = Path(root)
        self.guard = guard or Guard()
        self.layout = Layout(self.root)
        self.faults: list[Fault] = []
        # Places to look further that are not used any more, one line each: `graphcache.remote.tiered`.
        self.troubles: list[str] = []

    def lookup(self, key: Key) -> Entry | None:
        """The entry of `key`, when all its parts are equal and its object passes its checksum.

        The object is read too, because a build that found it whole without looking would never repair it.
        """
        entry = self._entry_at(self.layout.entry(key))
        # A digest alone could collide; the parts cannot.
        if entry is None or entry.key != key or self._is_refused(entry):
            return None
        try:
            self.open(entry)
        except CorruptError:
            return None
        return entry

    def by_program(self, program: str) -> list[Entry]:
        """Entries of `program`, sorted by key digest."""
        return self._entries_at(self.layout.entry_files_of(self.layout.program(program)))

    def entries(self) -> Iterator[Entry]:
        """All entries, sorted by program and key digest, each read when it is its turn."""
        found = (self._entry_at(path) for path in self.layout.entry_files())
        return (entry for entry in found if entry is not None)

    def open(self, entry: Entry, *, sha256: bool = False) -> Artifact:
        """The checked artifact of `entry`; a bad one is quarantined together with its entry.

        `sha256` checks its name as well, in ten times the time: for verify. Raises CorruptError when it is bad or
        gone, StoreError when it cannot be told.
        """
        # Who could forge a signature's artifact could forge an XXH3 first.
        sha256 = sha256 or self.guard.trust is not None
        try:
            return self._read_object(self.layout.object(entry.object.sha256), entry, sha256)
        except CorruptError as error:
            self._fault_pair(entry, str(error), sha256)
            raise CorruptError(
                f"{entry.graph.name}, object {entry.object.sha256[:12]}: {error}",
                hint="the next build compiles it again",
            ) from error

    def check_name(self, path: Path) -> bool:
        """Whether the object file at `path` has the SHA-256 that it is named by; one that has not is quarantined."""
        name = path.name.removesuffix(OBJECT_SUFFIX)
        try:
            if path != self.layout.object(name):
                raise CorruptError(f"an object whose place is {self.layout.relative(self.layout.object(name))}")
            check_name(path, name)
        except FileNotFoundError:
            # gc took it since it was listed.
            return True
        except CorruptError as error:
            self._fault(path, str(error), self._refuse_always)
            return False
        except OSError as error:
            raise store_error("read", path, error) from error
        return True

    def failure(self, key: Key) -> Failure | None:
        found = self._record_at(self.layout.failure(key), Failure.decode)
        return found if found is not None and found.key == key else None

    def verdict(self, entry: Entry) -> Verdict | None:
        """Whether the artifact of `entry` was proven; None when nobody tried, or the verdict is of other bytes."""
        path = self.layout.verdict(entry.key)
        found = self._record_at(path, Verdict.decode)
        if found is None or found.key != entry.key or found.artifact != entry.artifact_digest:
            return None
        return None if self.guard.refusal_in(self.root, found.encode()) else found

    def failures(self) -> list[Failure]:
        """All failure records, sorted by graph name, then key digest."""
        found = [self._record_at(path, Failure.decode) for path in self.layout.failure_files()]
        return sorted((f for f in found if f is not None), key=lambda f: (f.graph, f.key.digest))

    def commit(self, key: Key, data: bytes, facts: Facts) -> Entry:
        """Adds the artifact `data` under `key`; returns the entry that is in the store afterwards.

        The first commit wins: when a whole pair of `key` is there already, it stays and is returned.
        Raises CorruptError for data that is no artifact of `key`, StoreError when it cannot be written.
        """
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = Entry(key, Object.of(data), facts, created)
        return self.adopt(entry, data, self.guard.sign(entry.encode()))

    def adopt(self, entry: Entry, data: bytes, signature: bytes | None = None) -> Entry:
        """Adds a pair that exists already, from another store: `commit` with the entry as it was there.

        Raises CorruptError also for one that lacks a signature which the guard asks for.
        """
        check_object(entry, data, sha256=True)
        refusal = self.guard.refusal(entry.encode(), signature)
        if refusal:
            raise CorruptError(f"{entry.graph.name}: {refusal}")
        found = self.lookup(entry.key)
        if found is None:
            make_private(self.root)
            # Before the entry: nobody who asks for signatures then finds it without.
            if signature is not None:
                keep_signature(self.root, entry.encode(), signature)
            found = self._place(entry, data)
        self.clear_failure(entry.key)
        return found

    def builds(self) -> list[tuple[BuildRecord, str | None]]:
        """The log of builds, the oldest first, each with the public key that signed it. What the guard does not let be
        used is left out, and a fault."""
        found = []
        for path in self.layout.build_files():
            record = self._record_at(path, BuildRecord.decode)
            if record is None:
                continue
            data = record.encode()
            refusal = self.guard.refusal_in(self.root, data)
            if refusal:
                self.faults.append(Fault(self.layout.relative(path), f"not used: {refusal}"))
            else:
                found.append((record, signer_of(kept_signature(self.root, data))))
        return sorted(found, key=lambda pair: (pair[0].started, pair[0].id))

    def record_build(self, record: BuildRecord, before: BuildRecord | None = None) -> None:
        """Writes a line of the log, in the place of what the same build has written `before`. Raises StoreError."""
        data = record.encode()
        signature = self.guard.sign(data)
        if signature is not None:
            keep_signature(self.root, data, signature)
        write_file(self.layout.build(record.id), data, replace=True)
        if signature is not None and before is not None:
            forget_signature(self.root, before.encode())

    def record_failure(self, failure: Failure) -> None:
        if os.path.isabs(failure.log):
            raise ValueError(f"a log is named relative to the store, which may move; not {failure.log!r}")
        write_file(self.layout.failure(failure.key), failure.encode(), replace=True)

    def record_verdict(self, verdict: Verdict) -> None:
        """Keeps `verdict` in the place of an earlier one. Raises StoreError when it cannot be written."""
        self._place_verdict(verdict, self.guard.sign(verdict.encode()))

    def adopt_verdict(self, verdict: Verdict, signature: bytes | None) -> None:
        """`record_verdict` for one from another store. Raises CorruptError when the guard does not let it be used."""
        refusal = self.guard.refusal(verdict.encode(), signature)
        if refusal:
            raise CorruptError(f"the verdict on {verdict.graph}: {refusal}")
        self._place_verdict(verdict, signature)

    def _place_verdict(self, verdict: Verdict, signature: bytes | None) -> None:
        make_private(self.root)
        if signature is not None:
            keep_signature(self.root, verdict.encode(), signature)
        write_file(self.layout.verdict(verdict.key), verdict.encode(), replace=True)

    def clear_failure(self, key: Key) -> None:
        path = self.layout.failure(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise store_error("remove", path, error) from error

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        """Says whether nobody else is known to compile `key`. Only saves duplicate work."""
        return claim(self.layout.lock(key))

    @property
    def leased(self) -> bool:
        """Whether a claim that is not ours is known to be of a builder that lives."""
        return False

    @property
    def poll_secs(self) -> float:
        """How often to look whether a claim that is not ours has ended."""
        return 1.0

    def bring(self, wanted: Sequence[Wanted]) -> bool:
        """There is nowhere else to look."""
        return False

    def bring_answers(self, questions: Sequence[str]) -> bool:
        return False

    def _place(self, entry: Entry, data: bytes) -> Entry:
        target, named = self.layout.object(entry.object.sha256), self.layout.entry(entry.key)
        # Even if it is there: a new file is young, so gc leaves it alone until the entry names it.
        write_file(target, data, replace=True)
        if not write_file(named, entry.encode(), replace=False):
            winner = self.lookup(entry.key)
            if winner is not None:
                return winner
            # What lies there is bad and could not be moved, or is of a key whose digest collides, or is another
            # client's and not visible here for a minute (NFS): then our pair is as good.
            write_file(named, entry.encode(), replace=True)
        # gc takes an object away, then looks for entries; we wrote the entry, now we look for the object: one of the
        # two sees the other.
        if not target.exists():
            write_file(target, data, replace=True)
        return entry

    def refuses(self, entry: Entry) -> bool:
        """Whether the guard does not let `entry` be used."""
        return bool(self.guard.refusal_in(self.root, entry.encode()))

    def _is_refused(self, entry: Entry) -> bool:
        """Whether the guard does not let `entry` be used; then that is a fault, once."""
        refusal = self.guard.refusal_in(self.root, entry.encode())
        if refusal:
            fault = Fault(self.layout.relative(self.layout.entry(entry.key)), f"not used: {refusal}")
            self.faults += [] if fault in self.faults else [fault]
        return bool(refusal)

    def _entries_at(self, paths: Iterable[Path]) -> list[Entry]:
        found = (self._entry_at(path) for path in paths)
        return [entry for entry in found if entry is not None]

    def _entry_at(self, path: Path) -> Entry | None:
        return self._record_at(path, partial(self._decode_entry, path))

    def _decode_entry(self, path: Path, data: bytes) -> Entry:
        entry = Entry.decode(data)
        place = self.layout.entry(entry.key)
        if place != path:
            raise CorruptError(f"an entry whose place is {self.layout.relative(place)}")
        return entry

    def _record_at(self, path: Path, decode: Callable[[bytes], Record]) -> Record | None:
        """What is in a small file; None when it is absent, or bad and quarantined."""
        try:
            return decode(self._read(path))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            self._fault(path, str(error), lambda moved: decode(read_file(moved)))
            return None

    def _read_object(self, path: Path, entry: Entry, sha256: bool) -> Artifact:
        try:
            return check_object(entry, self._read(path, entry.object.size_bytes), sha256=sha256)
        except FileNotFoundError as error:
            raise CorruptError("it is gone") from error

    def _read(self, path: Path, exactly_bytes: int | None = None) -> bytes:
        """The file's bytes. Raises FileNotFoundError, CorruptError; StoreError when it cannot be told."""
        try:
            return read_file(path, exactly_bytes=exactly_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _BAD_MEDIUM:
                raise CorruptError(f"cannot be read: {error.strerror}") from error
            raise store_error("read", path, error) from error

    def _fault_pair(self, entry: Entry, problem: str, sha256: bool) -> None:
        """Quarantines the object of `entry`, and `entry` with it unless another pair has taken its place."""
        path, named = self.layout.object(entry.object.sha256), self.layout.entry(entry.key)
        if self._entry_at(named) != entry:
            # Evicted or replaced since it was read: nothing is wrong with the store.
            return
        self._fault(path, problem, lambda moved: self._read_object(moved, entry, sha256))
        if not path.exists():
            self._fault(named, f"names {self.layout.relative(path)}: {problem}", self._refuse_always)

    def _fault(self, path: Path, problem: str, check: Callable[[Path], object]) -> None:
        moved = self._move_to_quarantine(path, check)
        where = None if moved is None else self.layout.relative(moved)
        self.faults.append(Fault(self.layout.relative(path), problem, where))
        _log.debug("quarantine %s: %s; now %s", path, problem, moved or "where it was")

    def _move_to_quarantine(self, path: Path, check: Callable[[Path], object]) -> Path | None:
        return move_to_quarantine(path, self.layout.quarantine, check)

    @staticmethod
    def _refuse_always(path: Path) -> None:
        raise CorruptError(f"{path.name} is bad whatever it holds")
