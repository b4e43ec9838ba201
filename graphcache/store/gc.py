"""Eviction and sweeping: what a store can do without, by size, age or manifest, and what killed jobs have left.

`plan` only reads and says what would go, with the reason; `apply` deletes that. An object goes only when no entry names
it, also when a commit runs at the same time:

- gc leaves objects alone that are younger than a day, and a commit always writes its object afresh;
- gc takes an object out of sight, then reads all entries, and puts it back if one names it; a commit writes its entry,
  then looks whether its object is still there, and writes it again if not. Whoever comes second sees the other.
"""

from __future__ import annotations

import calendar
import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphcache.digest import sha256_hex
from graphcache.errors import CorruptError, StoreError
from graphcache.store.base import Entry
from graphcache.store.files import TEMPORARY, is_temporary, store_error, sync_folder
from graphcache.store.layout import RECORD_SUFFIX, VERDICT_SUFFIX, Layout
from graphcache.store.local import LocalStore
from graphcache.store.programs import remembered
from graphcache.store.read_only import ReadOnly
from graphcache.store.reading import read_file

_log = logging.getLogger(__name__)

DAY_SECS = 86_400.0
# A commit takes seconds; a day also covers clocks of other machines that are wrong by hours.
GRACE_SECS = DAY_SECS
# Long enough for someone to look at quarantined files, at logs and at failures.
KEEP_SECS = 30 * DAY_SECS


@dataclass(frozen=True)
class Limits:
    """What to keep. With none of them set nothing is evicted, and only leftovers are swept.

    max_size_bytes: objects may take this much together; the ones used longest ago go first
    max_age_secs:   an entry whose last use is longer ago goes
    keep:           key digests that stay whatever the other two say; alone (neither of the two is set), all others go
    """

    max_size_bytes: int | None = None
    max_age_secs: float | None = None
    keep: frozenset[str] | None = None


@dataclass(frozen=True)
class Eviction:
    entry: Entry
    reason: str


@dataclass(frozen=True)
class Leftover:
    """A file that nothing needs; `path` is relative to the store's folder."""

    path: str
    reason: str
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """What would go, sorted, and what stays."""

    evictions: tuple[Eviction, ...]
    leftovers: tuple[Leftover, ...]
    kept: tuple[Entry, ...]

    @property
    def freed_bytes(self) -> int:
        evicted = sum(eviction.entry.size_bytes for eviction in self.evictions)
        return evicted + sum(leftover.size_bytes for leftover in self.leftovers)

    @property
    def kept_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.kept)


@dataclass
class _Reasons:
    """Entries that go, each with the first reason that was found."""

    by_key: dict[str, str] = field(default_factory=dict)

    def add(self, entry: Entry, reason: str) -> None:
        self.by_key.setdefault(entry.key.digest, reason)


def plan(
    store: LocalStore, limits: Limits, *, last_use: Mapping[str, float] | None = None, now: float | None = None
) -> Plan:
    """What `apply` would delete. `last_use` maps key digests to Unix seconds; without one, an entry's age is its own.

    Raises StoreError when an entry is damaged: what it named cannot be told.
    """
    moment = time.time() if now is None else now
    layout = store.layout
    # Objects before entries: one that a commit names meanwhile is then not taken for an orphan.
    objects = list(layout.object_files())
    entries = _entries(layout.root)
    ages = {entry.key.digest: moment - last_use_secs(entry, last_use or {}) for entry in entries}
    reasons = reasons_to_go(entries, ages, limits)
    named = {layout.object(entry.object.sha256) for entry in entries}
    orphans = _older(layout, [p for p in objects if p not in named], moment, GRACE_SECS, "no entry names it")
    gone = [entry for entry in entries if entry.key.digest in reasons]
    kept = [entry for entry in entries if entry.key.digest not in reasons]
    leftovers = (*orphans, *_forgettable(layout, kept, moment), *_other_leftovers(layout, moment))
    leftovers = (*leftovers, *_unused_signatures(layout, kept, moment))
    return Plan(
        evictions=tuple(Eviction(entry, reasons[entry.key.digest]) for entry in gone),
        leftovers=tuple(sorted(leftovers, key=lambda leftover: leftover.path)),
        kept=tuple(kept),
    )


def apply(store: LocalStore, planned: Plan) -> None:
    """Deletes what was planned. Raises StoreError; what was deleted until then stays deleted."""
    layout = store.layout
    for eviction in planned.evictions:
        _delete(layout.entry(eviction.entry.key))
        _delete(layout.verdict(eviction.entry.key))
        _log.debug("evict %s: %s, key %s", eviction.entry.graph.name, eviction.reason, eviction.entry.key.digest)
    evicted = [layout.object(eviction.entry.object.sha256) for eviction in planned.evictions]
    swept = [layout.root / leftover.path for leftover in planned.leftovers]
    orphans = [path for path in swept if _is_object(layout, path)]
    _delete_objects(layout, [*evicted, *orphans])
    for path in set(swept).difference(orphans):
        _delete(path)
    for program in layout.program_folders():
        # Fails unless it is empty; a commit that needs it makes it again.
        with contextlib.suppress(OSError):
            program.rmdir()


def reasons_to_go(entries: Sequence[Entry], ages: Mapping[str, float], limits: Limits) -> dict[str, str]:
    """Key digests of what goes, with why. `ages`: seconds since the last use of each, by key digest."""
    reasons = _Reasons()
    keep = limits.keep or frozenset()
    candidates = [entry for entry in entries if entry.key.digest not in keep]
    if limits.max_age_secs is not None:
        for entry in candidates:
            if ages[entry.key.digest] > limits.max_age_secs:
                reasons.add(entry, f"last used {ages[entry.key.digest] / DAY_SECS:.1f} days ago")
    if limits.max_size_bytes is not None:
        left = sum(entry.size_bytes for entry in entries if entry.key.digest not in reasons.by_key)
        for entry in sorted(candidates, key=lambda e: (-ages[e.key.digest], e.key.digest)):
            if left <= limits.max_size_bytes:
                break
            if entry.key.digest not in reasons.by_key:
                reasons.add(entry, "over the size limit, used longest ago")
                left -= entry.size_bytes
    if limits.keep is not None and limits.max_age_secs is None and limits.max_size_bytes is None:
        for entry in candidates:
            reasons.add(entry, "in no manifest that is kept")
    return reasons.by_key


def _entries(root: Path) -> list[Entry]:
    """All entries, without touching the store: a dry run moves nothing."""
    reader = ReadOnly(root)
    entries = list(reader.entries())
    if reader.faults:
        raise StoreError(
            f"damaged entries: {len(reader.faults)}, first {reader.faults[0].path}: what they name cannot be told",
            hint="run graphcache verify, which quarantines them, then gc again",
        )
    return entries


def last_use_secs(entry: Entry, last_use: Mapping[str, float]) -> float:
    """Unix time; that of its creation where no use of it is known."""
    created = calendar.timegm(tuple(int(part) for part in re.findall(r"\d+", entry.created)))
    return max(float(created), last_use.get(entry.key.digest, 0.0))


def _forgettable(layout: Layout, kept: Iterable[Entry], now: float) -> Iterator[Leftover]:
    """What remembers which program an old source exports to, when no artifact of the program is kept."""
    programs, own = {entry.program for entry in kept}, set(layout.program_files())
    paths = (path for path, program in remembered(layout.root) if path in own and program not in programs)
    yield from _older(layout, paths, now, KEEP_SECS, "remembers a program without an artifact")


def _unused_signatures(layout: Layout, kept: Iterable[Entry], now: float) -> Iterator[Leftover]:
    """Signatures over records that are not there any more; one is written before its record, so a day is waited."""
    paths = list(layout.signature_files())
    if not paths:
        return
    signed = {sha256_hex(entry.encode()) for entry in kept}
    for path in (*layout.program_files(), *layout.verdict_files(), *layout.build_files()):
        with contextlib.suppress(OSError, CorruptError):
            signed.add(sha256_hex(read_file(path)))
    yield from _older(layout, [p for p in paths if p.stem not in signed], now, GRACE_SECS, "signs what is not here")


def _other_leftovers(layout: Layout, now: float) -> Iterator[Leftover]:
    yield from _older(layout, layout.temporary_files(), now, GRACE_SECS, "left by a killed write")
    yield from _older(layout, layout.lock_files(), now, GRACE_SECS, "an old claim")
    yield from _older(layout, layout.lease_files(), now, GRACE_SECS, "an old claim")
    lone = (path for path in layout.verdict_files() if not _entry_of(path).exists())
    yield from _older(layout, lone, now, GRACE_SECS, "a verdict without an entry")
    yield from _older(layout, layout.quarantined_files(), now, KEEP_SECS, "quarantined over 30 days ago")
    yield from _older(layout, layout.failure_files(), now, KEEP_SECS, "a failure of over 30 days ago")
    yield from _older(layout, layout.log_files(), now, KEEP_SECS, "a log of over 30 days ago")


def _entry_of(verdict: Path) -> Path:
    return verdict.with_name(verdict.name.removesuffix(VERDICT_SUFFIX) + RECORD_SUFFIX)


def _older(layout: Layout, paths: Iterable[Path], now: float, age_secs: float, reason: str) -> Iterator[Leftover]:
    """Those of `paths` that came here longer ago: by ctime, which a move into quarantine/ renews and nobody can set."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if now - status.st_ctime > age_secs:
                yield Leftover(layout.relative(path), reason, status.st_size)


def _is_object(layout: Layout, path: Path) -> bool:
    return path.is_relative_to(layout.root / "objects") and not is_temporary(path)


def _delete_objects(layout: Layout, paths: Iterable[Path]) -> None:
    """Takes objects out of sight, looks for entries that name them by now, deletes those that none names."""
    hidden = {path: aside for path in paths if (aside := _hide(path)) is not None}
    if not hidden:
        return
    # Until the entries are read it cannot be told, and all of them stay.
    named = set(hidden)
    try:
        named = {layout.object(entry.object.sha256) for entry in _entries(layout.root)}
    finally:
        for path, aside in hidden.items():
            if path in named and not path.exists():
                _rename(aside, path)
            else:
                _delete(aside)


def _hide(path: Path) -> Path | None:
    aside = path.with_name(f"{TEMPORARY}gc-{os.urandom(16).hex()}")
    return aside if _rename(path, aside) else None


def _rename(path: Path, target: Path) -> bool:
    """False when it is gone."""
    try:
        os.rename(path, target)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise store_error("rename", path, error) from error
    return True


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error("remove", path, error) from error
