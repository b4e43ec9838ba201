"""Filling a store from a remote: everything that it has, or what manifests name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphcache.manifest.manifest import Manifest
from graphcache.remote.tier import NAMES, Tier, in_turn, is_entry
from graphcache.store.base import Wanted
from graphcache.store.local import LocalStore
from graphcache.store.programs import FOLDER, question_digest


@dataclass(frozen=True)
class Pulled:
    """Key digests, sorted.

    pulled:  brought by this pull
    present: here already
    bad:     listed there, and not whole or not trusted; the remote's `faults` say what
    absent:  named by a manifest, and not there
    """

    pulled: tuple[str, ...]
    present: tuple[str, ...]
    bad: tuple[str, ...]
    absent: tuple[str, ...]


async def pull_all(tier: Tier, store: LocalStore) -> Pulled:
    """Brings every pair, and what sources export to. Raises RemoteError, StoreError."""
    names = [name for name in sorted(await tier.files.names("entries", deep=True)) if is_entry(name)]
    own = [entry.key for entry in list(store.entries())]
    # Looked up, since what is damaged here, or not trusted, is brought again.
    here = {NAMES.entry(key).as_posix(): key.digest for key in own if store.lookup(key) is not None}

    async def one(name: str) -> bool:
        entry = await tier.entry(name)
        return entry is not None and await tier.bring_entry(entry, store)

    lacking = [name for name in names if name not in here]
    results = dict(zip(lacking, await in_turn(lacking, one), strict=True))
    answers = [Path(name).stem for name in await tier.files.names(FOLDER, deep=True) if _is_answer(name)]
    known = {path.stem for path in store.layout.program_files()}
    await tier.bring_answers([digest for digest in answers if digest not in known], store)
    return Pulled(
        pulled=tuple(sorted(Path(name).stem for name, found in results.items() if found)),
        present=tuple(sorted(here[name] for name in names if name in here)),
        bad=tuple(sorted(Path(name).stem for name, found in results.items() if not found)),
        absent=(),
    )


async def pull_manifests(tier: Tier, store: LocalStore, manifests: Sequence[Manifest]) -> Pulled:
    """Brings the artifacts that manifests name, without a listing. Raises RemoteError, StoreError."""
    recorded = [each for manifest in manifests for each in manifest.graphs if each.key is not None]
    keys = {each.key.digest: each.key for each in recorded if each.key is not None}
    lacking = [key for key in keys.values() if store.lookup(key) is None]
    # Only the very key will do: nothing else is what the manifest names.
    results = await tier.bring([Wanted(key, dict(key.parts)) for key in lacking], store)
    asked = [
        question_digest(each.source.digest, each.made, manifest.toolchain.get("torch", ""))
        for manifest in manifests
        for each in manifest.graphs
    ]
    await tier.bring_answers(list(dict.fromkeys(asked)), store)
    found = {key.digest for key, result in zip(lacking, results, strict=True) if result}
    lost = {key.digest for key in lacking} - found
    return Pulled(
        pulled=tuple(sorted(found)),
        present=tuple(sorted(set(keys) - found - lost)),
        bad=tuple(sorted(lost & tier.bad)),
        absent=tuple(sorted(lost - tier.bad)),
    )


def _is_answer(name: str) -> bool:
    return NAMES.is_program_file(Path(name))
