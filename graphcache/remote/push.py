"""Writing a store's pairs to a remote: objects before the entries that name them; the first entry of a key stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphcache.errors import CorruptError
from graphcache.remote.tier import NAMES, Tier, in_turn, is_entry
from graphcache.store.base import Entry
from graphcache.store.builds import FOLDER as BUILDS
from graphcache.store.builds import BuildRecord
from graphcache.store.local import LocalStore
from graphcache.store.programs import FOLDER, record_path
from graphcache.store.reading import RECORD_LIMIT_BYTES, read_file
from graphcache.trust.guard import kept_signature
from graphcache.trust.signature import signature_path


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """Key digests, sorted.

    pushed:  written by this push
    present: there already
    damaged: not whole in the local store, so not pushed; its `faults` say what
    answers: records of `graphcache.store.programs` that were written
    """

    pushed: tuple[str, ...]
    present: tuple[str, ...]
    damaged: tuple[str, ...]
    pushed_bytes: int
    answers: int


async def push_pair(tier: Tier, store: LocalStore, entry: Entry, *, object_there: bool = False) -> bool:
    """Writes a pair that is whole here; False when an entry of its key is there, which stays unless it is known bad.

    Raises CorruptError for a pair that is not whole here, RemoteError.
    """
    files, key = tier.files, entry.key.digest
    data = await asyncio.to_thread(lambda: store.open(entry, sha256=True).as_bytes())
    if not object_there:
        await files.put(NAMES.object(entry.object.sha256).as_posix(), data, new=False)
    name, record = NAMES.entry(entry.key).as_posix(), entry.encode()
    await _push_signature(tier, store, record)
    placed = await files.put(name, record, new=key not in tier.bad)
    if placed:
        tier.bad.discard(key)
        await push_verdict(tier, store, entry)
    return placed


async def push_verdict(tier: Tier, store: LocalStore, entry: Entry) -> None:
    """Writes whether an artifact is right, if that was found out here. The last one to find out counts."""
    verdict = store.verdict(entry)
    if verdict is not None:
        await _push_signature(tier, store, verdict.encode())
        await tier.files.put(NAMES.verdict(entry.key).as_posix(), verdict.encode(), new=False)


async def push(tier: Tier, store: LocalStore, entries: Sequence[Entry]) -> Pushed:
    """Writes those of `entries` that the remote lacks, and all program records. Raises RemoteError.

    What is there is taken from its listing, sizes of objects included: an entry whose object is absent or cut short is
    written again.
    """
    objects = await tier.files.names("objects", deep=True)
    listed = await tier.files.names("entries", deep=True)
    there = {name for name in listed if is_entry(name)}
    lacking: list[Entry] = []
    present: list[Entry] = []
    for entry in entries:
        named = NAMES.entry(entry.key).as_posix() in there
        whole = _has_object(objects, entry)
        if named and not whole:
            found = await tier.entry(NAMES.entry(entry.key).as_posix())
            whole = found is not None and _has_object(objects, found)
            if not whole:
                tier.bad.add(entry.key.digest)
        (present if named and whole else lacking).append(entry)

    async def one(entry: Entry) -> bool | None:
        try:
            return await push_pair(tier, store, entry, object_there=_has_object(objects, entry))
        except CorruptError:
            return None

    results = await in_turn(lacking, one)
    unproven = [entry for entry in present if NAMES.verdict(entry.key).as_posix() not in listed]
    await in_turn(unproven, lambda entry: _push_verdict_of_same(tier, store, entry))
    done = [entry for entry, result in zip(lacking, results, strict=True) if result]
    await _push_signatures(tier, store, present)
    await _push_builds(tier, store)
    return Pushed(
        pushed=_digests(done),
        present=_digests([*present, *(e for e, result in zip(lacking, results, strict=True) if result is False)]),
        damaged=_digests(entry for entry, result in zip(lacking, results, strict=True) if result is None),
        pushed_bytes=sum(entry.size_bytes for entry in done),
        answers=await _push_answers(tier, store),
    )


async def push_build(tier: Tier, store: LocalStore, record: BuildRecord) -> None:
    """Writes a line of the log of builds. Only its own build ever writes it."""
    data = record.encode()
    await _push_signature(tier, store, data)
    await tier.files.put(NAMES.build(record.id).as_posix(), data, new=False)


async def push_built(tier: Tier, store: LocalStore, entries: Sequence[Entry], answers: Iterable[str]) -> None:
    """Writes what the remote lacks of a build's `entries`, and `answers`, by the digests of their questions.

    Asks for each by its name, since a listing may be long, and lag behind. Raises RemoteError, CorruptError.
    """

    async def pair(entry: Entry) -> None:
        if await tier.entry(NAMES.entry(entry.key).as_posix()) is None:
            await push_pair(tier, store, entry)
        else:
            await _push_verdict_of_same(tier, store, entry)

    async def answer(digest: str) -> None:
        path, name = record_path(store.root, digest), record_path(Path(), digest).as_posix()
        if path.exists() and await tier.files.get(name, RECORD_LIMIT_BYTES) is None:
            await push_answer(tier, store, path, name)

    await in_turn(entries, pair)
    await in_turn(answers, answer)


async def push_answer(tier: Tier, store: LocalStore, path: Path, name: str) -> None:
    """Writes a record of `graphcache.store.programs`. Whoever wrote last counts, as in the store itself."""
    record = await asyncio.to_thread(read_file, path)
    await _push_signature(tier, store, record)
    await tier.files.put(name, record, new=False)


async def _push_signature(tier: Tier, store: LocalStore, record: bytes) -> None:
    """Writes the signature over a record, if there is one, before the record itself."""
    signature = await asyncio.to_thread(kept_signature, store.root, record)
    if signature is not None:
        await tier.files.put(signature_path(Path(), record).as_posix(), signature, new=False)


async def _push_verdict_of_same(tier: Tier, store: LocalStore, entry: Entry) -> None:
    """The same for an entry that is there already: only if it is of the same artifact."""
    if store.verdict(entry) is None:
        return
    there = await tier.entry(NAMES.entry(entry.key).as_posix())
    if there is not None and there.artifact_digest == entry.artifact_digest:
        await push_verdict(tier, store, entry)


async def _push_answers(tier: Tier, store: LocalStore) -> int:
    there = await tier.files.names(FOLDER, deep=True)
    paths = {store.layout.relative(path): path for path in store.layout.program_files()}
    lacking = [(path, name) for name, path in paths.items() if name not in there]
    await in_turn(lacking, lambda one: push_answer(tier, store, *one))
    return len(lacking)


async def _push_signatures(tier: Tier, store: LocalStore, entries: Sequence[Entry]) -> None:
    """Signatures that were made after the push of what they sign, where the remote has these very records."""
    if not any(store.layout.signature_files()):
        return

    async def one(record: bytes, name: str) -> None:
        kept = await asyncio.to_thread(kept_signature, store.root, record)
        signed = signature_path(Path(), record).as_posix()
        if kept is None or await tier.files.get(signed, RECORD_LIMIT_BYTES) == kept:
            return
        if await tier.files.get(name, RECORD_LIMIT_BYTES) == record:
            await tier.files.put(signed, kept, new=False)

    records = [(entry.encode(), NAMES.entry(entry.key).as_posix()) for entry in entries]
    for entry in entries:
        verdict = store.verdict(entry)
        if verdict is not None:
            records.append((verdict.encode(), NAMES.verdict(entry.key).as_posix()))
    answers = [(read_file(path), store.layout.relative(path)) for path in store.layout.program_files()]
    await in_turn([*records, *answers], lambda each: one(*each))


async def _push_builds(tier: Tier, store: LocalStore) -> None:
    """Lines of the log that the remote lacks, or has as they were while their build went on."""
    there = await tier.files.names(BUILDS, deep=True)
    lines = ((record, NAMES.build(record.id).as_posix()) for record, _ in store.builds())
    lacking = [each for each, name in lines if there.get(name, -1) not in (None, len(each.encode()))]
    await in_turn(lacking, lambda record: push_build(tier, store, record))


def _has_object(objects: Mapping[str, int | None], entry: Entry) -> bool:
    """By a listing, which may not tell sizes."""
    name = NAMES.object(entry.object.sha256).as_posix()
    return name in objects and objects[name] in (None, entry.object.size_bytes)


def _digests(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(sorted(entry.key.digest for entry in entries))
