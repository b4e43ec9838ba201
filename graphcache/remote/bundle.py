"""One file with a cache's artifacts, for machines that no network joins: an uncompressed tar of the store's files.

Any tar program lists it. Its members are plain files with exactly the names of docs/store.md, so nothing in it leads
out of a folder; it is not compressed, so nothing in it is larger than itself; each artifact passes every check of a
commit on both sides.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from graphcache.digest import json_sha256
from graphcache.errors import CorruptError, GraphcacheError
from graphcache.proof.verdict import Verdict
from graphcache.store.base import Entry, Fault
from graphcache.store.files import TEMPORARY, store_error, sync_folder
from graphcache.store.layout import Layout
from graphcache.store.local import LocalStore
from graphcache.store.programs import records_of, unsealed_answer, write_record
from graphcache.store.reading import RECORD_LIMIT_BYTES
from graphcache.trust.guard import kept_signature
from graphcache.trust.signature import signature_path

NAMES = Layout(Path())
ELSEWHERE = "choose another place for it"


class BundleError(GraphcacheError):
    """A file that is no bundle, or holds what a bundle never holds. Nothing of it is taken."""

    name = "bundle"


@dataclass(frozen=True)
class Imported:
    """Key digests, sorted: brought, here before, and those whose pair did not pass (the faults say why)."""

    imported: tuple[str, ...]
    present: tuple[str, ...]
    faults: tuple[Fault, ...]


def export(store: LocalStore, entries: Iterable[Entry], target: Path) -> int:
    """Writes the pairs of `entries`, signatures, and all answers about their programs, to `target`; returns its bytes.

    The file is there whole or not at all, and the same for the same store. Raises CorruptError for a damaged artifact,
    StoreError.
    """
    chosen = sorted(entries, key=lambda entry: entry.key.digest)
    temporary = target.with_name(f"{TEMPORARY}{os.urandom(16).hex()}")
    try:
        try:
            with tarfile.open(temporary, "x", format=tarfile.USTAR_FORMAT) as bundle:
                _write(bundle, store, chosen)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise store_error("write", target, error, ELSEWHERE) from error
    return target.stat().st_size


def import_bundle(store: LocalStore, source: Path) -> Imported:
    """Adds the pairs of a bundle. Raises BundleError before anything is taken, StoreError."""
    try:
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as bundle:
            members = _members(bundle, os.fstat(file.fileno()).st_size)
            _check_end(file, members)
            return _take(store, bundle, members)
    except OSError as error:
        raise store_error("read", source, error, ELSEWHERE) from error
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise BundleError(f"{source} is no bundle: {error}", hint="graphcache export makes one") from error


def _write(bundle: tarfile.TarFile, store: LocalStore, entries: Iterable[Entry]) -> None:
    written: set[str] = set()

    def add(path: Path, data: bytes) -> None:
        name = store.layout.relative(path)
        if name not in written:
            written.add(name)
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o444
            bundle.addfile(member, io.BytesIO(data))

    def add_record(path: Path, record: bytes) -> None:
        add(path, record)
        signature = kept_signature(store.root, record)
        if signature is not None:
            add(signature_path(store.root, record), signature)

    programs = set()
    for entry in entries:
        programs.add(entry.program)
        add(store.layout.object(entry.object.sha256), store.open(entry, sha256=True).as_bytes())
        add_record(store.layout.entry(entry.key), entry.encode())
        verdict = store.verdict(entry)
        if verdict is not None:
            add_record(store.layout.verdict(entry.key), verdict.encode())
    for path, record in records_of(store.layout.program_files(), programs):
        add_record(path, record)


def _members(bundle: tarfile.TarFile, size_bytes: int) -> dict[str, tarfile.TarInfo]:
    """Every member by its name, when all of them are what a bundle has. Raises BundleError."""
    found: dict[str, tarfile.TarInfo] = {}
    for member in bundle:
        problem = _problem(member, size_bytes)
        if member.name in found:
            problem = "there twice"
        if problem:
            raise BundleError(
                f"{member.name!r} is {problem}; nothing was taken",
                hint="graphcache export makes no such file",
            )
        found[member.name] = member
    return found


def _check_end(file: IO[bytes], members: Mapping[str, tarfile.TarInfo]) -> None:
    """Raises EOFError unless two blocks of zeros end the file: one that was cut between members looks whole else."""
    block = tarfile.BLOCKSIZE
    file.seek(max((m.offset_data + -(-m.size // block) * block for m in members.values()), default=0))
    if file.read(2 * block) != bytes(2 * block):
        raise EOFError("it ends early")


def _problem(member: tarfile.TarInfo, size_bytes: int) -> str:
    """Why no bundle has such a member; empty when it may."""
    path = Path(member.name)
    is_object = NAMES.is_object(path)
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
        return "no plain file"
    if path.as_posix() != member.name or not (is_object or _is_record(path)):
        return "no name of a store's file"
    limit = size_bytes if is_object else RECORD_LIMIT_BYTES
    return f"said to have {member.size:,} bytes" if not 0 <= member.size <= limit else ""


def _is_record(path: Path) -> bool:
    kinds = (NAMES.is_entry, NAMES.is_program_file, NAMES.is_signature, NAMES.is_verdict)
    return any(is_kind(path) for is_kind in kinds)


def _take(store: LocalStore, bundle: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo]) -> Imported:
    def read(path: Path) -> bytes:
        member = members.get(path.as_posix())
        file: IO[bytes] | None = None if member is None else bundle.extractfile(member)
        if file is None or member is None:
            raise CorruptError("it is not in the file")
        data = file.read()
        if len(data) != member.size:
            raise CorruptError("the file ends inside it")
        return data

    def signature(record: bytes) -> bytes | None:
        path = signature_path(Path(), record)
        return read(path) if path.as_posix() in members else None

    imported: list[str] = []
    present: list[str] = []
    faults: list[Fault] = []
    for name in sorted(members):
        path = Path(name)
        try:
            if NAMES.is_entry(path):
                entry = _entry(path, read(path))
                here = store.lookup(entry.key) is not None
                try:
                    _take_verdict(store, entry, read, members, signature)
                except CorruptError as error:
                    # The entry has a signature of its own.
                    faults.append(Fault(NAMES.verdict(entry.key).as_posix(), error.message))
                if not here:
                    store.adopt(entry, read(NAMES.object(entry.object.sha256)), signature(entry.encode()))
                (present if here else imported).append(entry.key.digest)
            elif NAMES.is_program_file(path):
                _take_answer(store, path.stem, read(path), signature(read(path)))
        except CorruptError as error:
            faults.append(Fault(name, error.message))
    return Imported(tuple(sorted(imported)), tuple(sorted(present)), tuple(faults))


def _entry(path: Path, record: bytes) -> Entry:
    entry = Entry.decode(record)
    if NAMES.entry(entry.key) != path:
        raise CorruptError(f"an entry whose place is {NAMES.entry(entry.key)}")
    return entry


def _take_verdict(
    store: LocalStore,
    entry: Entry,
    read: Callable[[Path], bytes],
    members: Mapping[str, tarfile.TarInfo],
    signature: Callable[[bytes], bytes | None],
) -> None:
    """What was found out there about an artifact that nobody here has tried."""
    path = NAMES.verdict(entry.key)
    if path.as_posix() not in members or store.verdict(entry) is not None:
        return
    verdict = Verdict.decode(read(path))
    if (verdict.key, verdict.artifact) != (entry.key, entry.artifact_digest):
        raise CorruptError(f"its verdict {path} is on another artifact")
    store.adopt_verdict(verdict, signature(verdict.encode()))


def _take_answer(store: LocalStore, digest: str, record: bytes, signed: bytes | None) -> None:
    asked, _ = unsealed_answer(record)
    if json_sha256(asked) != digest:
        raise CorruptError("an answer to another question than it is named by")
    refusal = store.guard.refusal(record, signed)
    if refusal:
        raise CorruptError(f"not used: {refusal}")
    write_record(store.root, digest, record, signed)
