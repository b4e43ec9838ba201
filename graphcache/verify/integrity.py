"""The integrity of a store: every byte against its digest, and every file in its place.

Covered: each entry against its own SHA-256 and place; each object that an entry names against size, XXH3-128, SHA-256
and key; each other object against its name; each verdict, failure and remembered program against its own SHA-256. What
fails is quarantined, as by any other read. Not covered: logs and locks; whether an artifact computes the right thing
(`graphcache.proof`), or compiles to the same bytes again (`graphcache.verify.rebuild`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from graphcache.digest import json_sha256
from graphcache.errors import CorruptError, UsageError
from graphcache.store.base import Entry, Fault
from graphcache.store.files import store_error
from graphcache.store.local import LocalStore
from graphcache.store.programs import unsealed_answer
from graphcache.store.quarantine import move_to_quarantine
from graphcache.store.reading import read_file


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a store holds after it was looked through. Paths are relative to the store's folder.

    entries:     the whole ones, sorted
    faults:      corruption; empty in a sound store
    orphans:     whole objects that no entry names: of a commit that was killed half-way, or still runs
    strays:      files that the store never writes
    temporaries: what writes in progress, or killed ones, have left
    quarantined: how many files lie in quarantine/, from now and before
    size_bytes:  of all objects that were read and passed
    """

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...]
    orphans: tuple[str, ...]
    strays: tuple[str, ...]
    temporaries: tuple[str, ...]
    quarantined: int
    size_bytes: int

    @property
    def sound(self) -> bool:
        return not self.faults


def verify(store: LocalStore, prefixes: Sequence[str] = ()) -> Report:
    """Reads every byte of the store, or of the entries whose key digests begin with one of `prefixes`.

    Raises UsageError for a prefix of nothing, StoreError when the store cannot be read.
    """
    seen_before = len(store.faults)
    # Objects first: one that is committed meanwhile is then not taken for an orphan.
    objects = [] if prefixes else list(store.layout.object_files())
    entries = _selected(store, prefixes)
    whole = tuple(entry for entry in entries if _passes(store, entry))
    for entry in whole:
        store.verdict(entry)
    named = {store.layout.object(entry.object.sha256) for entry in entries}
    orphans = [path for path in objects if path not in named and store.check_name(path) and path.exists()]
    if not prefixes:
        # Whatever of these is bad is a fault of the store from here on.
        store.failures()
        store.builds()
        store.faults.extend(_program_faults(store))
    relative = store.layout.relative
    return Report(
        entries=whole,
        faults=tuple(store.faults[seen_before:]),
        orphans=tuple(map(relative, orphans)),
        strays=() if prefixes else tuple(map(relative, store.layout.strays())),
        temporaries=() if prefixes else tuple(map(relative, store.layout.temporary_files())),
        quarantined=len(store.layout.quarantined_files()),
        size_bytes=sum(entry.size_bytes for entry in whole) + sum(path.stat().st_size for path in orphans),
    )


def _selected(store: LocalStore, prefixes: Sequence[str]) -> list[Entry]:
    entries = list(store.entries())
    for prefix in prefixes:
        names = [entry.key.digest for entry in entries] + [fault.path.rpartition("/")[2] for fault in store.faults]
        if not any(name.startswith(prefix) for name in names):
            raise UsageError(f"no entry has a key that begins with {prefix!r}", hint="graphcache ls lists the keys")
    return [entry for entry in entries if not prefixes or entry.key.digest.startswith(tuple(prefixes))]


def _passes(store: LocalStore, entry: Entry) -> bool:
    try:
        store.open(entry, sha256=True)
    except CorruptError:
        return False
    return True


def _program_faults(store: LocalStore) -> Iterator[Fault]:
    """Bad records of `graphcache.store.programs`. They are quarantined; the next build that needs one exports again."""
    for path in store.layout.program_files():
        check = partial(_check_program, "/".join(path.parts[-2:]))
        try:
            check(path)
        except FileNotFoundError:
            # gc took it since it was listed.
            continue
        except CorruptError as error:
            moved = move_to_quarantine(path, store.layout.quarantine, check)
            where = None if moved is None else store.layout.relative(moved)
            yield Fault(store.layout.relative(path), str(error), where)
        except OSError as error:
            raise store_error("read", path, error) from error


def _check_program(place: str, path: Path) -> None:
    """Raises CorruptError unless the file is an answer whose question has the digest of `place`, `ab/<digest>.json`."""
    asked, _ = unsealed_answer(read_file(path))
    digest = json_sha256(asked)
    if place != f"{digest[:2]}/{digest}.json":
        raise CorruptError(f"a remembered program whose place is programs/{digest[:2]}/{digest}.json")
