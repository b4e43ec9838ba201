"""A near store before a far one."""

from __future__ import annotations

import shutil

import pytest

from graphcache.errors import StoreError
from graphcache.store import Failure, LocalStore, ReadOnly, Tiered, find
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_facts, fake_key

KEY = fake_key()


@pytest.fixture
def far(tmp_path):
    return LocalStore(tmp_path / "far")


@pytest.fixture
def tiered(store, far):
    return Tiered(store, ReadOnly(far.root))


def commit(store, number=0):
    return store.commit(fake_key(number), fake_artifact(fake_key(number)), fake_facts())


def test_what_only_the_far_store_has_is_copied_with_its_facts(store, far, tiered):
    entry = commit(far)
    assert tiered.lookup(KEY) == entry
    assert store.lookup(KEY) == entry
    shutil.rmtree(far.root)
    assert tiered.lookup(KEY) == entry
    assert tiered.open(entry).as_bytes() == fake_artifact(KEY)


def test_a_miss_of_both_is_a_miss(tiered):
    assert tiered.lookup(KEY) is None


def test_commits_go_to_the_near_store(store, far, tiered):
    entry = commit(tiered)
    assert store.lookup(KEY) == entry
    assert far.lookup(KEY) is None


def test_entries_of_both_are_listed_once_and_sorted(store, far, tiered):
    for number in (3, 1, 2):
        commit(far, number)
    for number in (2, 4):
        commit(store, number)
    listed = list(tiered.entries())
    assert {entry.key for entry in listed} == {fake_key(number) for number in (1, 2, 3, 4)}
    assert listed == sorted(listed, key=lambda entry: (entry.program, entry.key.digest))
    assert tiered.by_program(fake_key(2).program) == store.by_program(fake_key(2).program)


def test_find_looks_through_both(far, tiered):
    entry = commit(far)
    assert find(tiered, KEY.program, TOOLCHAIN).entry == entry


def test_a_damaged_near_object_is_fetched_again(store, far, tiered):
    entry = commit(far)
    tiered.lookup(KEY)
    path = store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert tiered.lookup(KEY) == entry
    assert tiered.faults != []
    assert store.lookup(KEY) == entry


def test_a_near_store_that_cannot_be_written_is_done_without(store, far, tiered, monkeypatch):
    entry = commit(far)

    def full(entry, data):
        raise StoreError("no space")

    monkeypatch.setattr(store, "adopt", full)
    assert tiered.lookup(KEY) == entry
    assert tiered.open(entry).as_bytes() == fake_artifact(KEY)
    assert store.lookup(KEY) is None


def test_failures_are_kept_near_and_seen_from_both(store, far, tiered):
    old = Failure(KEY, "fake", "far", "logs/x", False, "2026-11-29T12:00:00Z")
    new = Failure(KEY, "fake", "near", "logs/x", False, "2026-11-29T12:00:00Z")
    far.record_failure(old)
    assert tiered.failure(KEY) == old
    tiered.record_failure(new)
    assert tiered.failure(KEY) == store.failure(KEY) == new
    tiered.clear_failure(KEY)
    assert store.failure(KEY) is None


def test_a_claim_is_one_of_the_near_store(store, tiered):
    with tiered.claim(KEY) as alone:
        assert alone
        assert store.layout.lock(KEY).exists()
