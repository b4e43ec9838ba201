"""Many processes, one cache: each graph is in it once and right, whether locks work or not."""

from __future__ import annotations

import fcntl
import os

import pytest

from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.store.processes import finish, run_all, start

PROCESSES = 8
KEYS = [fake_key(number) for number in range(12)]


@pytest.fixture(params=["locks work", "locks do nothing", "locks fail"])
def locks(request, monkeypatch):
    def do_nothing(handle, operation):
        return None

    def fail(handle, operation):
        raise OSError(37, "No locks available")

    if request.param != "locks work":
        monkeypatch.setattr(fcntl, "flock", do_nothing if request.param == "locks do nothing" else fail)


def build(store: LocalStore, number: int) -> None:
    """What a builder does, in another order in each process, with a compiler that is not deterministic."""
    for key in KEYS[number:] + KEYS[:number]:
        with store.claim(key) as alone:
            if not alone or store.lookup(key) is not None:
                continue
            entry = store.commit(key, fake_artifact(key, salt=str(number)), fake_facts())
            assert store.open(entry).key == key
    assert store.faults == []


@pytest.mark.usefixtures("locks")
def test_each_key_is_there_once_and_right(store):
    run_all([lambda n=n: build(LocalStore(store.root), n) for n in range(PROCESSES)])
    report = verify(store)
    assert report.sound, report.faults
    assert report.temporaries == ()
    assert {entry.key for entry in report.entries} == set(KEYS)
    assert len(report.entries) == len(KEYS)


def test_commits_of_different_bytes_at_once_leave_one_consistent_pair(store):
    def commit(number: int) -> None:
        for key in KEYS:
            entry = store.commit(key, fake_artifact(key, salt=str(number)), fake_facts())
            assert store.open(entry).as_bytes() in [fake_artifact(key, salt=str(n)) for n in range(PROCESSES)]

    run_all([lambda n=n: commit(n) for n in range(PROCESSES)])
    report = verify(store)
    assert report.sound, report.faults
    assert len(report.entries) == len(KEYS)


def test_everyone_who_committed_gets_the_entry_that_stays(store):
    """A manifest that names the loser's digest would be wrong for ever."""
    reading, writing = os.pipe()

    def commit(number: int) -> None:
        for index, key in enumerate(KEYS):
            entry = store.commit(key, fake_artifact(key, salt=str(number)), fake_facts())
            os.write(writing, f"{index} {entry.artifact_digest}\n".encode())

    run_all([lambda n=n: commit(n) for n in range(PROCESSES)])
    os.close(writing)
    with open(reading) as pipe:
        told = {tuple(line.split()) for line in pipe}
    assert told == {(str(index), store.lookup(key).artifact_digest) for index, key in enumerate(KEYS)}


def test_repairing_at_once_leaves_a_sound_store(store):
    for key in KEYS:
        entry = store.commit(key, fake_artifact(key), fake_facts())
        path = store.layout.object(entry.artifact_digest)
        path.chmod(0o644)
        path.write_bytes(b"damaged")

    def repair(number: int) -> None:
        mine = LocalStore(store.root)
        for key in KEYS:
            if mine.lookup(key) is None:
                mine.commit(key, fake_artifact(key), fake_facts())

    run_all([lambda n=n: repair(n) for n in range(PROCESSES)])
    report = verify(LocalStore(store.root))
    assert report.sound, report.faults
    assert {entry.key for entry in report.entries} == set(KEYS)


def test_a_claim_is_seen_by_others_and_ends_with_its_holder(store):
    with store.claim(KEYS[0]) as alone:
        assert alone

        def look():
            with store.claim(KEYS[0]) as other:
                assert not other
            with store.claim(KEYS[1]) as other:
                assert other

        run_all([look])
    with store.claim(KEYS[0]) as alone:
        assert alone

    def die_with_a_claim():
        with store.claim(KEYS[0]):
            os._exit(7)

    assert finish(start(die_with_a_claim)) == 7
    with store.claim(KEYS[0]) as alone:
        assert alone
    assert os.listdir(store.root / "locks") == []


class FakeStaleClient(LocalStore):
    """A client of a network file system: for a minute it sees no new file of others, but cannot link over it."""

    def _entry_at(self, path):
        return None


def test_a_winner_that_the_loser_cannot_see_leaves_one_consistent_pair(store):
    first = store.commit(KEYS[0], fake_artifact(KEYS[0], salt="first"), fake_facts())
    stale = FakeStaleClient(store.root)
    assert stale.lookup(KEYS[0]) is None
    second = stale.commit(KEYS[0], fake_artifact(KEYS[0], salt="second"), fake_facts())
    assert store.lookup(KEYS[0]) == second
    # Who read the first entry before still gets what it names.
    assert store.open(first).as_bytes() == fake_artifact(KEYS[0], salt="first")
    assert verify(store).sound


def test_without_hard_links_the_last_of_two_commits_at_once_wins(store, monkeypatch):
    def refuse(source, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run_all([lambda n=n: build(LocalStore(store.root), n) for n in range(PROCESSES)])
    report = verify(store)
    assert report.sound, report.faults
    assert report.temporaries == ()
    assert {entry.key for entry in report.entries} == set(KEYS)
