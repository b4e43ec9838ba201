"""gc: what goes, why, and that nothing goes which a live entry names."""

from __future__ import annotations

import calendar
import time

import pytest

from graphcache.errors import StoreError
from graphcache.store import gc
from graphcache.store.base import Entry, Object
from graphcache.store.gc import DAY_SECS, KEEP_SECS, Limits, apply, plan
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_failure, fake_key

NOW = float(calendar.timegm((2026, 12, 1, 0, 0, 0)))
DAYS = ["2026-11-25", "2026-11-26", "2026-11-27", "2026-11-28"]


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "cache")


@pytest.fixture
def entries(store):
    """One a day, the oldest first."""
    found = []
    for number, day in enumerate(DAYS):
        key = fake_key(number)
        data = fake_artifact(key)
        found.append(store.adopt(Entry(key, Object.of(data), fake_facts(), f"{day}T00:00:00Z"), data))
    return found


def keys(planned) -> set:
    return {eviction.entry.key for eviction in planned.evictions}


def tomorrow() -> float:
    return time.time() + 1.5 * DAY_SECS


def test_without_limits_nothing_is_evicted(store, entries):
    planned = plan(store, Limits(), now=NOW)
    assert (planned.evictions, planned.leftovers, planned.freed_bytes) == ((), (), 0)
    assert planned.kept_bytes == sum(entry.size_bytes for entry in entries)


def test_what_is_remembered_of_a_program_goes_with_its_last_artifact(store, entries):
    programs, graph = Programs(store.root), entries[0].graph
    for number, entry in enumerate(entries[:2]):
        programs.remember(f"source {number}", graph, "2.10.0", entry.program)
    programs.remember("a source that was never compiled", graph, "2.10.0", "c" * 64)
    assert plan(store, Limits()).leftovers == ()
    later = time.time() + KEEP_SECS + 60
    planned = plan(store, Limits(keep=frozenset({entries[0].key.digest})), now=later)
    assert [leftover.reason for leftover in planned.leftovers] == ["remembers a program without an artifact"] * 2
    apply(store, planned)
    assert Programs(store.root).known("source 0", graph, "2.10.0") == entries[0].program
    assert Programs(store.root).known("source 1", graph, "2.10.0") is None


def test_by_age_since_creation_or_last_use(store, entries):
    limits = Limits(max_age_secs=4.5 * DAY_SECS)
    planned = plan(store, limits, now=NOW)
    assert keys(planned) == {entry.key for entry in entries[:2]}
    assert {eviction.reason for eviction in planned.evictions} == {"last used 5.0 days ago", "last used 6.0 days ago"}
    used = plan(store, limits, now=NOW, last_use={entries[0].key.digest: NOW - 60})
    assert keys(used) == {entries[1].key}


def test_by_size_the_one_used_longest_ago_first(store, entries):
    size_bytes = sum(entry.size_bytes for entry in entries[2:])
    assert keys(plan(store, Limits(max_size_bytes=size_bytes), now=NOW)) == {entry.key for entry in entries[:2]}
    last_use = {entries[0].key.digest: NOW, entries[1].key.digest: NOW}
    planned = plan(store, Limits(max_size_bytes=size_bytes), now=NOW, last_use=last_use)
    assert keys(planned) == {entry.key for entry in entries[2:]}
    assert plan(store, Limits(max_size_bytes=10**9), now=NOW).evictions == ()
    assert len(plan(store, Limits(max_size_bytes=0), now=NOW).evictions) == 4


def test_by_manifest_all_others_go(store, entries):
    keep = frozenset({entries[1].key.digest, "not in this store"})
    assert keys(plan(store, Limits(keep=keep), now=NOW)) == {e.key for e in entries if e is not entries[1]}


def test_a_kept_entry_stays_whatever_its_age_and_the_size_limit(store, entries):
    keep = frozenset({entries[0].key.digest})
    planned = plan(store, Limits(max_size_bytes=0, max_age_secs=0, keep=keep), now=NOW)
    assert keys(planned) == {entry.key for entry in entries[1:]}
    assert keys(plan(store, Limits(max_age_secs=10**9, keep=keep), now=NOW)) == set()


def test_a_plan_deletes_nothing(store, entries):
    plan(store, Limits(max_size_bytes=0), now=tomorrow())
    assert len(verify(store).entries) == 4


def test_apply_deletes_what_was_planned_and_leaves_a_sound_store(store, entries):
    apply(store, plan(store, Limits(max_size_bytes=entries[0].size_bytes * 2 + 100), now=NOW))
    report = verify(store)
    assert report.sound
    assert {entry.key for entry in report.entries} == {entry.key for entry in entries[2:]}
    assert (report.orphans, report.temporaries) == ((), ())
    apply(store, plan(store, Limits(max_size_bytes=0), now=NOW))
    assert not [path for path in (store.root / "entries").rglob("*") if path.name.endswith(".json")]
    assert not [path for path in (store.root / "objects").rglob("*") if path.is_file()]


def test_an_orphan_goes_after_a_day_and_not_before(store, entries):
    store.layout.entry(entries[0].key).unlink()
    assert plan(store, Limits()).leftovers == ()
    planned = plan(store, Limits(), now=tomorrow())
    assert [leftover.reason for leftover in planned.leftovers] == ["no entry names it"]
    assert planned.freed_bytes == entries[0].size_bytes
    apply(store, planned)
    assert verify(store).orphans == ()
    assert len(verify(store).entries) == 3


def test_what_killed_writes_left_goes_after_a_day(store, entries):
    (store.layout.entry(entries[0].key).parent / f".tmp-{1:032x}").write_bytes(b"x")
    (store.layout.object(entries[0].artifact_digest).parent / f".tmp-gc-{2:032x}").write_bytes(b"x")
    assert plan(store, Limits()).leftovers == ()
    apply(store, plan(store, Limits(), now=tomorrow()))
    assert verify(store).temporaries == ()
    assert len(verify(store).entries) == 4


def test_failures_logs_and_quarantined_files_go_after_a_month(store, entries):
    store.record_failure(fake_failure(fake_key(9), log="logs/fake.log"))
    log = store.layout.new_log("fake[8]")
    log.parent.mkdir()
    log.write_text("x")
    store.layout.object(entries[0].artifact_digest).unlink()
    assert store.lookup(entries[0].key) is None
    assert plan(store, Limits(), now=time.time() + KEEP_SECS - 60).leftovers == ()
    month_later = plan(store, Limits(), now=time.time() + KEEP_SECS + 60)
    assert [leftover.path.split("/")[0] for leftover in month_later.leftovers] == ["failures", "logs", "quarantine"]
    apply(store, month_later)
    assert store.failures() == []


FOREIGN = (
    *("logs/train.log", "logs/train-20240131.log", "locks/my.lock", "quarantine/notes.json", "failures/report.json"),
    *(
        "objects/ab/weights.safetensors",
        "objects/.tmp-download",
        "entries/2024/january/notes.json",
        "programs/ab/x.json",
    ),
)


def test_files_that_no_store_writes_are_left_alone(store, entries):
    """Of a folder that was named by mistake, or that has other files beside the store's."""
    for name in FOREIGN:
        path = store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    (store.root / "entries" / "2024" / "february").mkdir()
    planned = plan(store, Limits(max_size_bytes=0), now=time.time() + 400 * DAY_SECS)
    assert planned.leftovers == ()
    apply(store, planned)
    verify(store)
    assert all((store.root / name).read_bytes() == b"theirs" for name in FOREIGN)
    assert (store.root / "entries" / "2024" / "february").is_dir()
    assert store.faults == []


def test_an_object_of_two_entries_stays_while_one_of_them_lives(store, entries):
    """It cannot come about today, since the key is in the artifact; gc does not lean on that."""
    shared = Entry(entries[0].key, entries[1].object, entries[0].facts, entries[0].created)
    path = store.layout.entry(shared.key)
    path.unlink()
    path.write_bytes(shared.encode())
    apply(store, plan(store, Limits(keep=frozenset({entries[1].key.digest})), now=NOW))
    assert store.lookup(entries[1].key) == entries[1]


def test_with_damaged_entries_it_cannot_be_told_and_nothing_goes(store, entries):
    path = store.layout.entry(entries[0].key)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    with pytest.raises(StoreError, match="cannot be told") as caught:
        plan(store, Limits(), now=tomorrow())
    assert "verify" in caught.value.hint
    assert path.exists()


def test_an_orphan_that_a_commit_names_before_it_is_deleted_stays(store, entries):
    data, key = fake_artifact(entries[0].key), entries[0].key
    store.layout.entry(key).unlink()
    planned = plan(store, Limits(), now=tomorrow())
    assert len(planned.leftovers) == 1
    store.commit(key, data, fake_facts())
    apply(store, planned)
    assert store.lookup(key) is not None
    assert verify(store).sound


@pytest.mark.parametrize("moment", ["_hide", "_entries", "_delete"])
def test_a_commit_at_any_moment_of_a_gc_is_kept(store, entries, monkeypatch, moment):
    """A commit that begins just before gc takes objects away, reads the entries, or deletes what it took away."""
    data, key = fake_artifact(entries[0].key), entries[0].key
    store.layout.entry(key).unlink()
    planned = plan(store, Limits(), now=tomorrow())
    real, committed = getattr(gc, moment), []

    def commit_then_go_on(*args):
        if not committed:
            committed.append(store.commit(key, data, fake_facts()))
        return real(*args)

    monkeypatch.setattr(gc, moment, commit_then_go_on)
    apply(store, planned)
    assert committed
    assert store.lookup(key) == committed[0]
    assert verify(store).sound


def test_a_gc_in_the_middle_of_a_commit_keeps_the_pair(store, entries, monkeypatch):
    """gc has planned to delete an old orphan; a commit writes that object, then gc runs, then comes the entry."""
    from graphcache.store import local

    data, key = fake_artifact(entries[0].key), entries[0].key
    store.layout.entry(key).unlink()
    planned = plan(store, Limits(), now=tomorrow())
    real = local.write_file

    def gc_before_the_entry(path, content, *, replace):
        if path == store.layout.entry(key):
            apply(store, planned)
        return real(path, content, replace=replace)

    monkeypatch.setattr(local, "write_file", gc_before_the_entry)
    store.commit(key, data, fake_facts())
    assert store.lookup(key) is not None
    assert verify(store).sound


def test_a_gc_that_is_interrupted_puts_back_what_it_took_away(store, entries, monkeypatch):
    store.layout.entry(entries[0].key).unlink()
    planned = plan(store, Limits(), now=tomorrow())

    def interrupted(root):
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "_entries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply(store, planned)
    assert len(verify(store).orphans) == 1


def test_an_entry_from_tomorrow_is_the_youngest(store, entries):
    key = fake_key(9)
    data = fake_artifact(key)
    future = store.adopt(Entry(key, Object.of(data), fake_facts(), "2099-01-01T00:00:00Z"), data)
    assert keys(plan(store, Limits(max_age_secs=0), now=NOW)) == {entry.key for entry in entries}
    assert future in plan(store, Limits(max_size_bytes=future.size_bytes), now=NOW).kept
