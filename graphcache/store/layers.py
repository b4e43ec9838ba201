"""Wrappers: a store that is only read, and a near store before a far one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from graphcache.artifact import Artifact
from graphcache.errors import StoreError
from graphcache.key import Key
from graphcache.store.base import Entry, Facts, Failure, Fault, Store
from graphcache.store.local import LocalStore


class ReadOnly(LocalStore):
    """A store on files that is never written, whatever the file system would allow: bad files are refused in place."""

    def adopt(self, entry: Entry, data: bytes) -> NoReturn:
        self._refuse(f"the artifact of {entry.graph.name}")

    def record_failure(self, failure: Failure) -> NoReturn:
        self._refuse(f"the failure of {failure.graph}")

    def clear_failure(self, key: Key) -> NoReturn:
        self._refuse("that a failure is over")

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def _move_aside(self, path: Path, check: Callable[[Path], object]) -> None:
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise StoreError(f"{self.root} is used read-only: {what} was not kept", hint="choose another --cache to write")


class Tiered:
    """`near` before `far`. What only `far` has is copied to `near` when it is looked up; commits go to `near` alone.

    A bad object in `near` is set aside there and fetched again from `far`. A `near` that cannot be written (a full
    disk) is done without: the artifact then comes from `far` each time.
    """

    def __init__(self, near: LocalStore, far: Store) -> None:
        self.near, self.far = near, far

    @property
    def faults(self) -> list[Fault]:
        return [*self.near.faults, *self.far.faults]

    def lookup(self, key: Key) -> Entry | None:
        return self.near.lookup(key) or self._fetch(key)

    def by_program(self, program: str) -> list[Entry]:
        return _merged(self.near.by_program(program), self.far.by_program(program))

    def entries(self) -> Iterator[Entry]:
        return iter(_merged(self.near.entries(), self.far.entries()))

    def open(self, entry: Entry) -> Artifact:
        if self.near.lookup(entry.key) == entry:
            return self.near.open(entry)
        return self.far.open(entry)

    def commit(self, key: Key, data: bytes, facts: Facts) -> Entry:
        return self.near.commit(key, data, facts)

    def failure(self, key: Key) -> Failure | None:
        return self.near.failure(key) or self.far.failure(key)

    def record_failure(self, failure: Failure) -> None:
        self.near.record_failure(failure)

    def clear_failure(self, key: Key) -> None:
        self.near.clear_failure(key)

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        return self.near.claim(key)

    def _fetch(self, key: Key) -> Entry | None:
        found = self.far.lookup(key)
        if found is not None:
            with suppress(StoreError):
                return self.near.adopt(found, self.far.open(found).as_bytes())
        return found


def _merged(near: Iterable[Entry], far: Iterable[Entry]) -> list[Entry]:
    """Entries of both, near's where both have a key, sorted as `Store.entries` sorts."""
    both = {entry.key: entry for entry in (*far, *near)}
    return sorted(both.values(), key=lambda entry: (entry.program, entry.key.digest))
