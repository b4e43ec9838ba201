"""What a library inside someone's trainer logs at debug, through `graphcache...` loggers; nothing unless asked."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest

from graphcache.errors import CorruptError
from graphcache.key import Key
from graphcache.lookup import look_up
from graphcache.store.gc import DAY_SECS, Limits, apply, plan
from graphcache.store.local import LocalStore
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_facts, fake_key
from tests.support.programs import graph_of

KEY = fake_key()


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


@pytest.fixture
def logged(caplog):
    """Messages of graphcache's loggers, in order."""
    caplog.set_level(logging.DEBUG, logger="graphcache")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("graphcache.")]


def commit(store: LocalStore):
    return store.commit(KEY, fake_artifact(KEY), fake_facts())


def test_a_hit_and_a_miss_with_its_reason(store, logged, monkeypatch):
    graph = graph_of("scaled_sum", shape=(8,))
    look_up([graph], store=store, toolchain=TOOLCHAIN)
    monkeypatch.setattr("graphcache.store.programs.Programs.known", lambda *_: "ab" * 32)
    look_up([graph], store=store, toolchain=TOOLCHAIN)
    key = Key.of("ab" * 32, TOOLCHAIN, graph.settings)
    entry = store.commit(key, fake_artifact(key), fake_facts())
    look_up([graph], store=store, toolchain=TOOLCHAIN)
    assert logged() == [
        f"miss {graph.name}: this source was not exported yet",
        f"miss {graph.name}: no artifact of this program",
        f"hit  {graph.name}: artifact {entry.artifact_digest}, key {key.digest}",
    ]


def test_a_quarantine_names_the_file_its_problem_and_its_new_place(store, logged):
    entry = commit(store)
    path = store.layout.object(entry.object.sha256)
    path.write_bytes(b"x" * entry.size_bytes)
    with pytest.raises(CorruptError):
        store.open(entry)
    first = logged()[0]
    assert first.startswith(f"quarantine {path}: ")
    assert first.endswith(f"now {store.root / store.faults[0].quarantined}")


def test_a_claim_and_who_holds_it(store, logged):
    with store.claim(KEY), store.claim(KEY):
        pass
    name = store.layout.lock(KEY).name
    assert logged() == [f"claim {name}: held by this process", f"claim {name}: held by another"]


def test_an_eviction_with_its_reason(store, logged):
    entry = commit(store)
    apply(store, plan(store, Limits(max_size_bytes=0), now=time.time() + 2 * DAY_SECS))
    assert f"evict {entry.graph.name}: over the size limit, used longest ago, key {KEY.digest}" in logged()


def test_nothing_is_said_unless_it_is_asked_for(tmp_path):
    code = """
import sys
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_key
with LocalStore(sys.argv[1]).claim(fake_key()):
    pass
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
