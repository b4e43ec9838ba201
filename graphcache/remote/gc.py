"""Eviction and sweeping on S3 and GCS, by the rules of `graphcache.store.gc`, which itself collects shared folders.

An object store has no rename, so an object cannot be taken out of sight while entries are read. Instead:

- entries go before their objects, so what is killed at any moment leaves an object without an entry, never the reverse;
- only an object that was written over a day ago goes, and it is asked just before: a push writes its object afresh.

A push of that very object in the milliseconds between the question and the deletion leaves an entry without an object:
a miss for readers, which the next push writes again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphcache.errors import CorruptError, StoreError
from graphcache.remote.object_store import Listed, ObjectStoreFiles
from graphcache.remote.tier import NAMES, Tier, in_turn
from graphcache.store.base import Entry
from graphcache.store.gc import GRACE_SECS, KEEP_SECS, Eviction, Leftover, Limits, Plan, last_use_secs, reasons_to_go
from graphcache.store.layout import RECORD_SUFFIX, VERDICT_SUFFIX
from graphcache.store.programs import unsealed_answer
from graphcache.store.reading import RECORD_LIMIT_BYTES
from graphcache.trust.signature import signature_path


@dataclass(frozen=True)
class Collector:
    """A remote that is collected. `now_secs`: Unix time, which its own clock may be hours from."""

    tier: Tier
    files: ObjectStoreFiles
    now_secs: float

    @classmethod
    def of(cls, tier: Tier, files: ObjectStoreFiles, now_secs: float | None = None) -> Collector:
        return cls(tier, files, time.time() if now_secs is None else now_secs)

    async def plan(self, limits: Limits) -> Plan:
        """What `apply` would delete; only reads. Ages count from an entry's creation: nobody records uses there.

        Raises RemoteError; StoreError when an entry is damaged, since what it named cannot be told.
        """
        # Objects before entries: one that a push names meanwhile is then not taken for an orphan.
        objects = await self.files.listed("objects")
        records = await self.files.listed("entries")
        entries = await self._entries([name for name in records if NAMES.is_entry(Path(name))])
        ages = {entry.key.digest: self.now_secs - last_use_secs(entry, {}) for entry in entries}
        reasons = reasons_to_go(entries, ages, limits)
        kept = [entry for entry in entries if entry.key.digest not in reasons]
        leftovers = [*self._orphans(objects, entries), *self._lone_verdicts(records)]
        leftovers += [*await self._other_leftovers(kept, records)]
        return Plan(
            evictions=tuple(Eviction(e, reasons[e.key.digest]) for e in entries if e.key.digest in reasons),
            leftovers=tuple(sorted(leftovers, key=lambda leftover: leftover.path)),
            kept=tuple(kept),
        )

    async def apply(self, planned: Plan) -> int:
        """Deletes what was planned; returns how many objects stay for a later run, since they are younger than a day.

        Raises RemoteError; what was deleted until then stays deleted.
        """
        entries = [eviction.entry for eviction in planned.evictions]
        await in_turn(entries, self._delete_entry)
        objects = [NAMES.object(entry.object.sha256).as_posix() for entry in entries]
        swept = [leftover.path for leftover in planned.leftovers]
        deleted = await in_turn(dict.fromkeys([*objects, *swept]), self._delete_old)
        return sum(not done for done in deleted[: len(objects)])

    async def _entries(self, names: Iterable[str]) -> list[Entry]:
        """All entries; one that vanished meanwhile is none."""
        found = await in_turn(sorted(names), self.tier.entry)
        if self.tier.faults:
            first = self.tier.faults[0]
            raise StoreError(
                f"damaged entries: {len(self.tier.faults)}, first {first.path}: what they name cannot be told",
                hint="delete these files, push what they named from a cache that has it, then gc again",
            )
        return [entry for entry in found if entry is not None]

    async def _delete_entry(self, entry: Entry) -> None:
        await self.files.delete(NAMES.entry(entry.key).as_posix())
        await self.files.delete(NAMES.verdict(entry.key).as_posix())

    async def _delete_old(self, name: str) -> bool:
        """Deletes a file unless it was written anew in the last day; False when it stays."""
        modified_secs = await self.files.modified(name)
        if modified_secs is not None and self.now_secs - modified_secs <= GRACE_SECS:
            return False
        await self.files.delete(name)
        return True

    def _orphans(self, objects: Mapping[str, Listed], entries: Iterable[Entry]) -> Iterator[Leftover]:
        named = {NAMES.object(entry.object.sha256).as_posix() for entry in entries}
        lone = {name: each for name, each in objects.items() if name not in named and NAMES.is_object(Path(name))}
        yield from self._older(lone, GRACE_SECS, "no entry names it")

    def _lone_verdicts(self, records: Mapping[str, Listed]) -> Iterator[Leftover]:
        verdicts = {name: each for name, each in records.items() if NAMES.is_verdict(Path(name))}
        lone = {n: v for n, v in verdicts.items() if n.removesuffix(VERDICT_SUFFIX) + RECORD_SUFFIX not in records}
        yield from self._older(lone, GRACE_SECS, "a verdict without an entry")

    async def _other_leftovers(self, kept: Iterable[Entry], records: Mapping[str, Listed]) -> list[Leftover]:
        """Old leases, answers about programs without an artifact, and signatures over what is not there."""
        leases = {n: each for n, each in (await self.files.listed("leases")).items() if NAMES.is_lease(Path(n))}
        listed = await self.files.listed("programs")
        answers = {name: each for name, each in listed.items() if NAMES.is_program_file(Path(name))}
        programs = {entry.program for entry in kept}
        known = dict(zip(answers, await in_turn(answers, self._read), strict=True))
        forgettable = {name: answers[name] for name, data in known.items() if _program_in(data) not in programs}
        signatures = {n: s for n, s in (await self.files.listed("signatures")).items() if NAMES.is_signature(Path(n))}
        if signatures:
            builds = (name for name in await self.files.listed("builds") if NAMES.is_build(Path(name)))
            verdicts = [*(name for name in records if NAMES.is_verdict(Path(name))), *builds]
            signed = [entry.encode() for entry in kept] + [data for data in known.values() if data is not None]
            signed += [data for data in await in_turn(verdicts, self._read) if data is not None]
            for data in signed:
                signatures.pop(signature_path(Path(), data).as_posix(), None)
        return [
            *self._older(leases, GRACE_SECS, "an old claim"),
            *self._older(forgettable, KEEP_SECS, "remembers a program without an artifact"),
            *self._older(signatures, GRACE_SECS, "signs what is not here"),
        ]

    async def _read(self, name: str) -> bytes | None:
        return await self.files.get(name, RECORD_LIMIT_BYTES)

    def _older(self, files: Mapping[str, Listed], age_secs: float, reason: str) -> Iterator[Leftover]:
        """What the remote does not tell the age of stays."""
        for name, each in files.items():
            if each.modified_secs is not None and self.now_secs - each.modified_secs > age_secs:
                yield Leftover(name, reason, each.size_bytes)


def _program_in(data: bytes | None) -> str | None:
    """None for a damaged answer, which no program keeps."""
    try:
        return None if data is None else unsealed_answer(data)[1].program
    except CorruptError:
        return None
