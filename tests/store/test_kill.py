"""kill -9 at random moments: the store is sound each time, and every commit that was acknowledged is there."""

from __future__ import annotations

import os
import random
import time

import pytest

from graphcache.store.gc import DAY_SECS, Limits, apply, plan
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.store.processes import kill, start
from tests.support.storms import rounds

STORES = rounds(3, 10)
KILLS_A_STORE = 20


def commit_until_killed(store: LocalStore, first: int, acknowledgements: int) -> None:
    """Commits key after key, a few with bytes of several sizes, and tells of each that the store has taken."""
    for number in range(first, first + 1000):
        key = fake_key(number)
        with store.claim(key):
            store.commit(key, fake_artifact(key, runnable_bytes=64 << number % 12), fake_facts())
        os.write(acknowledgements, b"%d\n" % number)


def run_and_kill(store: LocalStore, first: int, alive_secs: float) -> list[int]:
    """The numbers of the keys whose commits were acknowledged before the kill."""
    reading, writing = os.pipe()
    child = start(lambda: commit_until_killed(store, first, writing))
    os.close(writing)
    time.sleep(alive_secs)
    assert kill(child) == -9
    with open(reading, "rb") as pipe:
        return [int(line) for line in pipe.read().splitlines()]


@pytest.mark.stress
def test_a_kill_at_any_moment_loses_only_what_was_being_written(tmp_path):
    random.seed(20261129)
    left_temporary = 0
    for round_ in range(STORES):
        store = LocalStore(tmp_path / str(round_))
        acknowledged: set[int] = set()
        for n in range(KILLS_A_STORE):
            acknowledged |= set(run_and_kill(store, n * 1000, random.uniform(0, 0.06)))
            seen = LocalStore(store.root)
            report = verify(seen)
            assert report.sound, report.faults
            assert report.strays == ()
            assert {fake_key(number) for number in acknowledged} <= {entry.key for entry in report.entries}
        left_temporary += len(report.temporaries)
        sweep_and_expect_the_same(store, [entry.key for entry in report.entries])
    # If no kill had hit a write, the moments were badly chosen.
    assert left_temporary > 0


def sweep_and_expect_the_same(store: LocalStore, keys: list) -> None:
    apply(store, plan(store, Limits(), now=time.time() + 2 * DAY_SECS))
    report = verify(store)
    assert report.sound
    assert (report.temporaries, report.orphans) == ((), ())
    assert [entry.key for entry in report.entries] == keys
