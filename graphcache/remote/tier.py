"""One remote as a store: the files of docs/store.md under other names, and nothing taken from it unchecked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from graphcache.digest import json_sha256
from graphcache.errors import CorruptError
from graphcache.proof.verdict import Verdict
from graphcache.remote.files import Files, open_files
from graphcache.remote.url import RemoteUrl
from graphcache.store.base import Entry, Fault, Wanted
from graphcache.store.builds import FOLDER as BUILDS
from graphcache.store.builds import BuildRecord
from graphcache.store.find import differences
from graphcache.store.layout import Layout
from graphcache.store.local import LocalStore
from graphcache.store.programs import record_path, unsealed_answer, write_record
from graphcache.store.reading import RECORD_LIMIT_BYTES
from graphcache.trust.guard import Guard, signer_of
from graphcache.trust.signature import signature_path

T = TypeVar("T")
R = TypeVar("R")

# Pairs under way at once: each holds its artifact in memory, and remotes have slots of their own.
PAIRS = 32
# Names in a remote: those of a store, without its root.
NAMES = Layout(Path())


@dataclass
class Tier:
    """A remote, and what was found in it that is not as it was written.

    remote: its files, or its URL, which is opened when it is first asked: that may import a client for a second
    bad: key digests whose pair does not pass its checks; a push may write these again
    """

    remote: Files | RemoteUrl
    faults: list[Fault] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)

    @cached_property
    def files(self) -> Files:
        """Raises RemoteError when a package that they need is missing."""
        return open_files(self.remote) if isinstance(self.remote, RemoteUrl) else self.remote

    @property
    def url(self) -> RemoteUrl:
        return self.remote if isinstance(self.remote, RemoteUrl) else self.remote.url

    @property
    def name(self) -> str:
        return str(self.url)

    async def bring(self, wanted: Sequence[Wanted], store: LocalStore) -> list[bool]:
        """Whether each was found and is in `store` now. Raises RemoteError, StoreError."""
        return await in_turn(wanted, lambda one: self._bring_one(one, store))

    async def bring_answers(self, questions: Sequence[str], store: LocalStore) -> list[bool]:
        """The same for records of `graphcache.store.programs`, by the digests of their questions."""
        return await in_turn(questions, lambda digest: self._bring_answer(digest, store))

    async def _bring_answer(self, digest: str, store: LocalStore) -> bool:
        name = record_path(Path(), digest).as_posix()
        try:
            data = await self._get(name, RECORD_LIMIT_BYTES)
            if data is None:
                return False
            asked, _ = unsealed_answer(data)
            if json_sha256(asked) != digest:
                raise CorruptError("an answer to another question than it is named by")
            signature = await self._signature(data)
            refusal = store.guard.refusal(data, signature)
            if refusal:
                raise CorruptError(f"not used: {refusal}")
        except CorruptError as error:
            self._fault(name, error)
            return False
        await asyncio.to_thread(write_record, store.root, digest, data, signature)
        return True

    async def entry(self, name: str) -> Entry | None:
        """The entry in the file `name`, when it is whole and in its place."""
        try:
            data = await self._get(name, RECORD_LIMIT_BYTES)
            if data is None:
                return None
            entry = Entry.decode(data)
            if NAMES.entry(entry.key).as_posix() != name:
                raise CorruptError(f"an entry whose place is {NAMES.entry(entry.key)}")
        except CorruptError as error:
            self._fault(name, error)
            self.bad.add(Path(name).stem)
            return None
        return entry

    async def bring_entry(self, entry: Entry, store: LocalStore) -> bool:
        """Whether the pair of `entry` passes all checks, and is in `store` now."""
        name = NAMES.object(entry.object.sha256).as_posix()
        try:
            data, signature = await asyncio.gather(
                self._get(name, entry.object.size_bytes), self._signature(entry.encode())
            )
            if data is None:
                raise CorruptError("it is gone")
            # Before the entry: one that is disproven is then used by nobody.
            await self._bring_verdict(entry, store)
            await asyncio.to_thread(store.adopt, entry, data, signature)
        except CorruptError as error:
            self._fault(name, error)
            self.bad.add(entry.key.digest)
            return False
        return True

    async def _bring_verdict(self, entry: Entry, store: LocalStore) -> None:
        """What was found out there about an artifact that nobody here has tried."""
        name = NAMES.verdict(entry.key).as_posix()
        try:
            data = await self._get(name, RECORD_LIMIT_BYTES)
            if data is None or store.verdict(entry) is not None:
                return
            verdict = Verdict.decode(data)
            if (verdict.key, verdict.artifact) == (entry.key, entry.artifact_digest):
                await asyncio.to_thread(store.adopt_verdict, verdict, await self._signature(data))
        except CorruptError as error:
            self._fault(name, error)

    async def _bring_one(self, wanted: Wanted, store: LocalStore) -> bool:
        async for entry in self._candidates(wanted):
            if await self.bring_entry(entry, store):
                return True
        return False

    async def _candidates(self, wanted: Wanted) -> AsyncIterator[Entry]:
        """Entries that match, the one of the very key first: it needs no listing, which may lag or not be there."""
        exact = NAMES.entry(wanted.key).as_posix()
        found = await self.entry(exact)
        if found is not None and found.key == wanted.key:
            yield found
        folder = NAMES.program(wanted.key.program).as_posix()
        others = [name for name in await self.files.names(folder) if is_entry(name) and name != exact]
        entries = [entry for entry in await in_turn(others, self.entry) if entry is not None]
        matches = [entry for entry in entries if not differences(entry, wanted.parts)]
        for entry in sorted(matches, key=lambda e: (e.created, e.key.digest), reverse=True):
            yield entry

    async def builds(self, guard: Guard) -> list[tuple[BuildRecord, str | None]]:
        """The log of builds there, as `LocalStore.builds`."""
        listed = await self.files.names(BUILDS, deep=True)
        names = sorted(name for name in listed if NAMES.is_build(Path(name)))
        found = [line for line in await in_turn(names, lambda name: self._build(name, guard)) if line is not None]
        return sorted(found, key=lambda line: (line[0].started, line[0].id))

    async def _build(self, name: str, guard: Guard) -> tuple[BuildRecord, str | None] | None:
        try:
            data = await self._get(name, RECORD_LIMIT_BYTES)
            if data is None:
                return None
            record, signature = BuildRecord.decode(data), await self._signature(data)
            refusal = guard.refusal(data, signature)
            if refusal:
                raise CorruptError(f"not used: {refusal}")
        except CorruptError as error:
            self._fault(name, error)
            return None
        return record, signer_of(signature)

    async def _signature(self, record: bytes) -> bytes | None:
        """What signs a record there, unchecked: it is kept with the record also where nobody asks for it."""
        return await self._get(signature_path(Path(), record).as_posix(), RECORD_LIMIT_BYTES)

    async def _get(self, name: str, limit_bytes: int) -> bytes | None:
        data = await self.files.get(name, limit_bytes)
        if data is not None and len(data) > limit_bytes:
            raise CorruptError(f"more than {limit_bytes:,} bytes")
        return data

    def _fault(self, name: str, error: CorruptError) -> None:
        self.faults.append(Fault(f"{self.name}/{name}", error.message))


def is_entry(name: str) -> bool:
    """Whether a name is one that entries have, and leads nowhere else."""
    return NAMES.is_entry(Path(name))


async def in_turn(items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, R]]) -> list[R]:
    """The results of `work`, in the order of `items`, PAIRS of them at a time. The first error ends all."""
    slots = asyncio.Semaphore(PAIRS)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
