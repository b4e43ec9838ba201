"""A store that is only read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

from graphcache.errors import StoreError
from graphcache.key import Key
from graphcache.proof.verdict import Verdict
from graphcache.store.base import Entry, Failure
from graphcache.store.builds import BuildRecord
from graphcache.store.local import LocalStore


class ReadOnly(LocalStore):
    """A store on files that is never written, whatever the file system would allow: bad files are refused in place."""

    def adopt(self, entry: Entry, data: bytes, signature: bytes | None = None) -> NoReturn:
        self._refuse(f"the artifact of {entry.graph.name}")

    def record_failure(self, failure: Failure) -> NoReturn:
        self._refuse(f"the failure of {failure.graph}")

    def record_build(self, record: BuildRecord, before: BuildRecord | None = None) -> NoReturn:
        self._refuse("a line of the log of builds")

    def record_verdict(self, verdict: Verdict) -> NoReturn:
        self._refuse(f"the verdict on {verdict.graph}")

    def clear_failure(self, key: Key) -> NoReturn:
        self._refuse("that a failure is over")

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def _move_to_quarantine(self, path: Path, check: Callable[[Path], object]) -> None:
        return None

    def _refuse(self, what: str) -> NoReturn:
        raise StoreError(f"{self.root} is used read-only: {what} was not kept", hint="choose another --cache to write")
