"""Signing what is in a store already: built without a key, or signed by one that is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphcache.errors import CorruptError
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.store.programs import records_of
from graphcache.trust.guard import keep_signature, kept_signature, signer_of
from graphcache.trust.keys import Signer
from graphcache.trust.trusted import Trust, TrustedKey


@dataclass(frozen=True)
class Signed:
    """Key digests of entries, sorted, and how many records besides were signed: verdicts, and what sources export to.

    signed:  by this run
    before:  have a signature that holds: by this key, or by another one
    damaged: their artifact is not what they name, so nothing is signed; the store's `faults` say what
    """

    signed: tuple[str, ...]
    before: tuple[str, ...]
    damaged: tuple[str, ...]
    records: int


def sign(store: LocalStore, entries: Iterable[Entry], signer: Signer, *, replace: bool = False) -> Signed:
    """Signs `entries`, and what the store knows of them, where no signature holds.

    replace: sign also what another key's signature holds for, in its place

    Whether a signature holds is the trust file's to say where the store has one; else one that is right and not over
    does. Artifacts are checked by SHA-256 first. Raises StoreError.
    """
    states: dict[str, list[str]] = {"signed": [], "before": [], "damaged": []}
    programs, count = set(), 0
    for entry in entries:
        try:
            store.open(entry, sha256=True)
        except CorruptError:
            states["damaged"].append(entry.key.digest)
            continue
        programs.add(entry.program)
        done = _sign(store, entry.encode(), signer, replace)
        states["signed" if done else "before"].append(entry.key.digest)
        verdict = LocalStore(store.root).verdict(entry)
        count += verdict is not None and _sign(store, verdict.encode(), signer, replace)
    for _, record in records_of(store.layout.program_files(), programs):
        count += _sign(store, record, signer, replace)
    return Signed(**{name: tuple(sorted(keys)) for name, keys in states.items()}, records=count)


def _sign(store: LocalStore, record: bytes, signer: Signer, replace: bool) -> bool:
    kept = kept_signature(store.root, record)
    if _holds(store.guard.trust, record, kept) and not (replace and signer_of(kept) != signer.public):
        return False
    keep_signature(store.root, record, signer.sign(record).encode())
    return True


def _holds(trust: Trust | None, record: bytes, signature: bytes | None) -> bool:
    public = signer_of(signature)
    if public is None:
        return False
    return not (trust or Trust({public: TrustedKey("its own", public)})).refusal(record, signature)
