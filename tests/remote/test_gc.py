"""gc on remotes: the same rules as in a cache, dry first; what is pinned stays, whatever is killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cli.main import run
from graphcache.errors import StoreError
from graphcache.remote import object_store
from graphcache.remote.files import open_files
from graphcache.remote.gc import Collector
from graphcache.remote.object_store import ObjectStoreFiles
from graphcache.remote.pull import pull_all
from graphcache.remote.push import push
from graphcache.remote.tier import NAMES, Tier
from graphcache.remote.url import parse
from graphcache.store.base import Entry
from graphcache.store.gc import DAY_SECS, KEEP_SECS, Limits, Plan
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.trust.guard import Guard
from graphcache.trust.keys import make_key, signer_of_environment
from graphcache.verify.integrity import verify
from tests.remote.conftest import fill
from tests.store.fakes import fake_verdict
from tests.store.processes import kill, start
from tests.support.fake_graphs import fake_graph


@pytest.fixture(params=["memory", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    """An empty remote that is no folder."""
    url = request.getfixturevalue("s3_url") if request.param == "s3" else f"memory://gc-{tmp_path.name}"
    return Tier(open_files(parse(url)))


def collector(tier: Tier, days: float = 0.0) -> Collector:
    """As of so many days from now."""
    assert isinstance(tier.files, ObjectStoreFiles)
    return Collector.of(tier, tier.files, time.time() + days * DAY_SECS)


def pushed(tier: Tier, store: LocalStore, *numbers: int) -> list[Entry]:
    entries = fill(store, *numbers)
    tier.files.run(push(tier, store, entries))
    return entries


def planned(tier: Tier, limits: Limits, days: float = 0.0) -> Plan:
    return tier.files.run(collector(tier, days).plan(limits))


def applied(tier: Tier, plan: Plan, days: float = 0.0) -> int:
    return tier.files.run(collector(tier, days).apply(plan))


def names(tier: Tier) -> set[str]:
    return {name for folder in ("entries", "objects", "signatures", "programs", "leases") for name in
            tier.files.run(tier.files.names(folder, deep=True))}  # fmt: skip


def left(tier: Tier, folder: Path) -> set[str]:
    """The keys that a new cache gets from it, all whole."""
    store = LocalStore(folder)
    assert tier.files.run(pull_all(tier, store)).bad == ()
    assert verify(store).sound
    return {entry.key.digest for entry in store.entries()}


def test_what_is_pinned_stays_and_the_rest_goes_by_quota(remote: Tier, store: LocalStore, tmp_path: Path) -> None:
    entries = pushed(remote, store, 1, 2, 3, 4)
    pinned = entries[0]
    limits = Limits(max_size_bytes=2 * pinned.size_bytes, keep=frozenset({pinned.key.digest}))
    before = names(remote)
    plan = planned(remote, limits)
    assert (len(plan.evictions), len(plan.kept)) == (2, 2)
    assert names(remote) == before, "a plan deletes nothing"
    assert applied(remote, plan) == 2, "their objects were written today"
    found = left(remote, tmp_path / "after")
    assert len(found) == 2
    assert pinned.key.digest in found
    later = planned(remote, Limits(), days=2)
    assert [leftover.reason for leftover in later.leftovers] == ["no entry names it"] * 2
    applied(remote, later, days=2)
    assert len([name for name in names(remote) if name.startswith("objects/")]) == 2
    assert left(remote, tmp_path / "last") == found


def test_old_objects_go_at_once_and_without_limits_nothing_does(remote: Tier, store: LocalStore) -> None:
    pushed(remote, store, 1, 2)
    assert planned(remote, Limits(), days=400).evictions == ()
    plan = planned(remote, Limits(max_age_secs=DAY_SECS), days=3)
    assert applied(remote, plan, days=3) == 0
    assert names(remote) == set()


def test_an_object_that_a_push_has_written_since_stays(remote: Tier, store: LocalStore, tmp_path: Path) -> None:
    (entry,) = pushed(remote, store, 1)
    remote.files.run(remote.files.delete(NAMES.entry(entry.key).as_posix()))
    plan = planned(remote, Limits(), days=2)
    assert len(plan.leftovers) == 1
    remote.files.run(push(remote, store, [entry]))
    applied(remote, plan)
    assert left(remote, tmp_path / "after") == {entry.key.digest}


def test_signatures_verdicts_answers_and_leases_go_with_what_they_are_about(
    remote: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(tmp_path / "key.pem")
    monkeypatch.setenv("GRAPHCACHE_SIGNING_KEY_FILE", str(tmp_path / "key.pem"))
    store = LocalStore(tmp_path / "signed", Guard(signer_of_environment()))
    entries = fill(store, 1, 2)
    for entry in entries:
        store.record_verdict(fake_verdict(entry))
        Programs(store.root, guard=store.guard).remember(entry.key.digest, fake_graph("g"), "2.10.0", entry.program)
    remote.files.run(push(remote, store, entries))
    remote.files.run(remote.files.put(f"leases/{'ab' * 32}/0.json", b"{}", new=True))
    remote.files.run(remote.files.put("objects/theirs.txt", b"not ours", new=True))
    assert planned(remote, Limits(), days=0.5).leftovers == ()
    days = KEEP_SECS / DAY_SECS + 2
    applied(remote, planned(remote, Limits(keep=frozenset({entries[0].key.digest})), days=days), days=days)
    # What signed the evicted verdict and answer is told only when these are gone.
    applied(remote, planned(remote, Limits(), days=days), days=days)
    found = sorted(name.partition("/")[0] for name in names(remote))
    assert found == ["entries", "entries", "objects", "objects", "programs", "signatures", "signatures", "signatures"]
    assert "objects/theirs.txt" in names(remote)


def test_with_a_damaged_entry_nothing_goes(remote: Tier, store: LocalStore) -> None:
    bad, _ = pushed(remote, store, 1, 2)
    remote.files.run(remote.files.put(NAMES.entry(bad.key).as_posix(), b"{}", new=False))
    with pytest.raises(StoreError, match="damaged entries: 1"):
        planned(remote, Limits(max_size_bytes=0))


@pytest.mark.stress
def test_kill_9_in_the_middle_loses_nothing_that_is_pinned(
    s3_url: str, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no entry is ever left without its object. One request at a time, so that there is a middle."""
    tier = Tier(open_files(parse(s3_url)))
    entries = pushed(tier, store, *range(24))
    pinned = frozenset(entry.key.digest for entry in entries[:4])
    monkeypatch.setattr(object_store, "CONCURRENCY", 1)

    def collect() -> None:
        own = Tier(open_files(parse(s3_url)))
        applied(own, planned(own, Limits(max_size_bytes=0, keep=pinned), days=3), days=3)

    for stop_at in (24, 16):
        child = start(collect)
        while len(tier.files.run(tier.files.names("entries", deep=True))) >= stop_at:
            assert os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        assert kill(child) == -9, "it was still at work"
        found = left(tier, tmp_path / f"{stop_at}")
        assert pinned <= found
        assert len(pinned) < len(found) < stop_at, "in the middle"
    collect()
    assert left(tier, tmp_path / "last") == pinned
    assert len(tier.files.run(tier.files.names("objects", deep=True))) == len(pinned)


def test_the_command_shows_first_and_deletes_with_yes(
    tmp_path: Path, s3_url: str, store: LocalStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(Tier(open_files(parse(s3_url))), store, 1, 2)
    words = ["gc", "--remote", s3_url, "--max-size", "0B"]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "over the size limit" in shown
    assert "Nothing was deleted" in shown
    assert run([*words, "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["remote"], facts["deleted"], len(facts["evictions"]), facts["later"]) == (s3_url, True, 2, 2)
    monkeypatch.setenv("GRAPHCACHE_REMOTE", s3_url)
    assert run(["gc", "--cache", str(tmp_path / "none"), "--yes"]) == 2, "only what is named"
    capsys.readouterr()
    for refused in (
        ["--remote", "https://host/cache"],
        ["--remote", s3_url, "--cache", "/x"],
        ["--remote", "/nowhere"],
    ):
        assert run(["gc", *refused, "--json"]) == 2
        assert "error" in json.loads(capsys.readouterr().out)


def test_a_shared_folder_is_collected_as_the_cache_that_it_is(
    tmp_path: Path, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "shared")
    pushed(Tier(open_files(parse(folder))), store, 1, 2)
    assert run(["gc", "--remote", folder, "--max-size", "0B", "--yes", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["evictions"]) == 2
    assert list(LocalStore(folder).entries()) == []
    assert not list((tmp_path / "shared" / "objects").rglob("*.safetensors"))
