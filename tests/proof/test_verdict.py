"""The verdict's file: bound to one artifact, checked when read, and a disproven artifact is served to nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcache.errors import CorruptError
from graphcache.proof.verdict import Verdict
from graphcache.store import gc
from graphcache.store.base import Entry
from graphcache.store.find import find
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_key, fake_verdict

KEY = fake_key()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


@pytest.fixture
def entry(store: LocalStore) -> Entry:
    return store.commit(KEY, fake_artifact(KEY), fake_facts())


def test_a_verdict_lies_beside_its_entry(store: LocalStore, entry: Entry) -> None:
    assert store.verdict(entry) is None
    store.record_verdict(fake_verdict(entry))
    assert store.verdict(entry) == fake_verdict(entry)
    path = store.layout.verdict(KEY)
    assert path.parent == store.layout.entry(KEY).parent
    report = verify(store)
    assert report.sound
    assert not report.strays
    assert [found.key for found in store.entries()] == [KEY]


def test_other_bytes_under_the_same_key_have_no_verdict(store: LocalStore, entry: Entry) -> None:
    store.record_verdict(replace(fake_verdict(entry, "disproven"), artifact="0" * 64))
    assert store.verdict(entry) is None


def test_a_disproven_artifact_is_no_match(store: LocalStore, entry: Entry) -> None:
    store.record_verdict(fake_verdict(entry, "disproven"))
    found = find(store, KEY.program, {k: v for k, v in KEY.parts.items() if k != "program"})
    assert found.entry is None
    assert found.reason == "disproven: result 1: twice the bound"


def test_one_of_another_cross_gcc_serves_instead(store: LocalStore, entry: Entry) -> None:
    """A training pod cannot see the cross compiler, so both match."""
    other = fake_key(cross_gcc="13.0")
    good = store.commit(other, fake_artifact(other), fake_facts())
    store.record_verdict(fake_verdict(entry, "disproven"))
    parts = {k: v for k, v in KEY.parts.items() if k not in ("program", "cross-gcc")}
    assert find(store, KEY.program, parts).entry == good


@settings(deadline=None)
@given(st.data())
def test_a_damaged_verdict_is_none(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = LocalStore(tmp_path_factory.mktemp("cache"))
    entry = store.commit(KEY, fake_artifact(KEY), fake_facts())
    store.record_verdict(fake_verdict(entry))
    path = store.layout.verdict(KEY)
    whole = path.read_bytes()
    place, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    path.chmod(0o644)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
    assert store.verdict(entry) is None
    assert [fault.path for fault in store.faults] == [store.layout.relative(path)]
    assert not path.exists()


def test_verify_names_a_damaged_verdict(store: LocalStore, entry: Entry) -> None:
    path = store.layout.verdict(KEY)
    path.write_bytes(b"{}\n")
    report = verify(store)
    assert [fault.path for fault in report.faults] == [store.layout.relative(path)]
    assert store.layout.quarantined_files()


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", "right"), ("seed", -1), ("artifact", "x"), ("created", "today"), ("secs", float("inf"))],
)
def test_a_field_of_another_kind_is_corrupt(entry: Entry, name: str, value: object) -> None:
    with pytest.raises((ValueError, CorruptError)):
        Verdict.decode(replace(fake_verdict(entry), **{name: value}).encode())  # type: ignore[arg-type]


def test_gc_takes_a_verdict_with_its_entry(store: LocalStore, entry: Entry) -> None:
    store.record_verdict(fake_verdict(entry))
    gc.apply(store, gc.plan(store, gc.Limits(keep=frozenset())))
    assert not store.layout.verdict(KEY).exists()
    assert not store.layout.program(KEY.program).exists()


def test_gc_sweeps_a_verdict_that_a_killed_gc_left(store: LocalStore, entry: Entry) -> None:
    store.record_verdict(fake_verdict(entry))
    store.layout.entry(KEY).unlink()
    assert not gc.plan(store, gc.Limits()).leftovers[1:]
    later = gc.plan(store, gc.Limits(), now=2e10)
    assert store.layout.relative(store.layout.verdict(KEY)) in [left.path for left in later.leftovers]
