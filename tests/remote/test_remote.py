"""Pairs go to a remote and come back whole, over every kind of remote; what is damaged there is never taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from graphcache.key import Key
from graphcache.remote.pull import pull_all
from graphcache.remote.push import push
from graphcache.remote.tier import NAMES, Tier
from graphcache.remote.tiered import TieredStore
from graphcache.remote.url import RemoteError, parse
from graphcache.store.base import Wanted
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs, question_digest
from graphcache.verify.integrity import verify
from tests.remote.conftest import fill
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.support.fake_graphs import fake_graph
from tests.support.servers import FaultProxy, nginx_server, use_s3

TierOf = Callable[[str], Tier]


def wanted(number: int) -> Wanted:
    """As a training pod asks: it has no cross compiler, so it does not know the whole key."""
    parts = {name: value for name, value in fake_key(number).parts.items() if name != "cross-gcc"}
    return Wanted(Key(parts), {name: value for name, value in parts.items() if name != "program"})


def pushed(tier: Tier, store: LocalStore) -> tuple[str, ...]:
    return tier.files.run(push(tier, store, list(store.entries()))).pushed


def test_what_is_pushed_comes_back_the_same(url: str, store: LocalStore, other: LocalStore, tier_of: TierOf) -> None:
    entries = fill(store, 1, 2, 3)
    assert len(pushed(tier_of(url), store)) == 3
    done = tier_of(url).files.run(pull_all(tier_of(url), other))
    assert done.pulled == tuple(sorted(entry.key.digest for entry in entries))
    assert list(other.entries()) == list(store.entries())
    assert verify(other).sound


def test_a_second_push_and_pull_move_nothing(url: str, store: LocalStore, other: LocalStore, tier_of: TierOf) -> None:
    fill(store, 1, 2)
    pushed(tier_of(url), store)
    again = tier_of(url).files.run(push(tier_of(url), store, list(store.entries())))
    assert (len(again.present), again.pushed) == (2, ())
    tier = tier_of(url)
    tier.files.run(pull_all(tier, other))
    assert len(tier.files.run(pull_all(tier, other)).present) == 2


def test_the_first_entry_of_a_key_stays(url: str, store: LocalStore, other: LocalStore, tier_of: TierOf) -> None:
    (first,), (second,) = fill(store, 1), fill(other, 1, salt="another compiler's")
    tier = tier_of(url)
    pushed(tier, store)
    # As after a listing that lags behind: the conditional write decides.
    from graphcache.remote.push import push_pair

    assert tier.files.run(push_pair(tier, other, second)) is False
    found = tier.files.run(tier.entry(NAMES.entry(first.key).as_posix()))
    assert found == first != second


def test_a_pod_finds_what_matches_all_that_it_sees(
    url: str, store: LocalStore, tmp_path: Path, tier_of: TierOf
) -> None:
    fill(store, 1)
    old = fake_key(1, torch="2.9.0")
    store.commit(old, fake_artifact(old), fake_facts())
    pushed(tier_of(url), store)
    pod = TieredStore(tmp_path / "pod", [parse(url)])
    assert pod.bring([wanted(1), wanted(7)])
    assert [entry.key for entry in pod.entries()] == [fake_key(1)]
    assert pod.troubles == []


def test_what_a_source_exports_to_comes_too(url: str, store: LocalStore, tmp_path: Path, tier_of: TierOf) -> None:
    graph, source = fake_graph("g"), "a" * 64
    fill(store, 1)
    Programs(store.root).remember(source, graph, "2.10.0", fake_key(1).program)
    pushed(tier_of(url), store)
    pod = TieredStore(tmp_path / "pod", [parse(url)])
    assert Programs(pod.root).known(source, graph, "2.10.0") is None
    assert pod.bring_answers([question_digest(source, graph, "2.10.0")])
    assert Programs(pod.root).known(source, graph, "2.10.0") == fake_key(1).program


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "gone", "entry"])
def test_what_is_damaged_there_is_not_taken_and_a_push_repairs_it(
    url: str, damage: str, store: LocalStore, tmp_path: Path, tier_of: TierOf
) -> None:
    if url.startswith("s3") and damage != "flip":
        pytest.skip("what is done about it is above what kinds of remotes differ in")
    (entry,) = fill(store, 1)
    tier = tier_of(url)
    pushed(tier, store)
    name = (NAMES.entry(entry.key) if damage == "entry" else NAMES.object(entry.artifact_digest)).as_posix()
    data = tier.files.run(tier.files.get(name, 1 << 20))
    assert data is not None
    changed = {"cut": data[:-9], "grow": data + b" "}.get(damage, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    tier.files.run(tier.files.delete(name))
    if damage != "gone":
        tier.files.run(tier.files.put(name, changed, new=True))
    pod = TieredStore(tmp_path / "pod", [parse(url)], push=True)
    assert not pod.bring([wanted(1)])
    assert [fault.path.rpartition("/")[2] for fault in pod.faults] == [Path(name).name]
    assert list(pod.entries()) == []
    # The pod compiles it, and what it pushes takes the place of what was bad.
    pod.commit(entry.key, fake_artifact(entry.key), fake_facts())
    assert TieredStore(tmp_path / "next", [parse(url)]).bring([wanted(1)])


def test_tiers_are_asked_in_order_and_only_for_what_is_lacking(
    store: LocalStore, other: LocalStore, tmp_path: Path, tier_of: TierOf
) -> None:
    shared, far = str(tmp_path / "shared"), "memory://far"
    fill(store, 1), fill(other, 1, 2, salt="far")
    pushed(tier_of(shared), store), pushed(tier_of(far), other)
    pod = TieredStore(tmp_path / "pod", [parse(shared), parse(far)])
    assert pod.bring([wanted(1), wanted(2)])
    by_key = {entry.key: entry.artifact_digest for entry in pod.entries()}
    assert by_key == {
        fake_key(1): next(iter(store.entries())).artifact_digest,
        fake_key(2): other.by_program(fake_key(2).program)[0].artifact_digest,
    }


# --- the S3 API, and faults between --------------------------------------------------------------------------------


@pytest.fixture
def filled_s3(s3_url: str, store: LocalStore, tier_of: TierOf) -> str:
    fill(store, *range(4))
    pushed(tier_of(s3_url), store)
    return s3_url


def test_two_pushes_at_once_leave_whole_pairs(s3_url: str, tmp_path: Path, tier_of: TierOf) -> None:
    stores = [LocalStore(tmp_path / name) for name in ("a", "b")]
    for each in stores:
        fill(each, *range(8), salt=each.root.name)
    threads = [threading.Thread(target=pushed, args=(tier_of(s3_url), each)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pod = TieredStore(tmp_path / "pod", [parse(s3_url)])
    assert pod.bring([wanted(n) for n in range(8)])
    assert len(verify(pod).entries) == 8


def test_errors_that_pass_are_tried_again(
    filled_s3: str, s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(s3_port) as proxy:
        use_s3(monkeypatch, proxy.port)
        proxy.fail = 2
        pod = TieredStore(tmp_path / "pod", [parse(filled_s3)])
        assert pod.bring([wanted(1)])
        assert pod.troubles == []
        assert proxy.requests > 2


@pytest.mark.parametrize("fault", [{"silent": True}, {"fail": 1000}, {"cut": 300}, {"delay_secs": 30.0}], ids=str)
def test_a_remote_that_does_not_work_costs_a_bounded_wait_and_one_line(
    fault: dict[str, object], filled_s3: str, s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHCACHE_REMOTE_TIMEOUT", "0.3")
    with FaultProxy(s3_port) as proxy:
        use_s3(monkeypatch, proxy.port)
        for name, value in fault.items():
            setattr(proxy, name, value)
        pod = TieredStore(tmp_path / "pod", [parse(filled_s3)])
        assert not pod.bring([wanted(n) for n in range(4)])
        asked = proxy.requests
        assert not pod.bring([wanted(n) for n in range(4)])
        assert proxy.requests == asked, "it is not asked again"
    assert len(pod.troubles) == 1
    assert filled_s3 in pod.troubles[0]
    assert list(pod.entries()) == []


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(monkeypatch, 9)
    pod = TieredStore(tmp_path / "pod", [parse("s3://graphs/cache")])
    assert not pod.bring([wanted(1)])
    assert len(pod.troubles) == 1


def test_a_bucket_that_is_not_there_is_no_miss(s3_url: str, tmp_path: Path) -> None:
    pod = TieredStore(tmp_path / "pod", [parse("s3://misspelt/cache")])
    assert not pod.bring([wanted(1)])
    assert "there is no such bucket" in pod.troubles[0]


def test_a_commit_that_cannot_be_pushed_stays_here_and_is_said(s3_url: str, tmp_path: Path) -> None:
    pod = TieredStore(tmp_path / "pod", [parse("s3://misspelt/cache")], push=True)
    (entry,) = fill(pod, 1)
    assert pod.lookup(entry.key) == entry
    with pytest.raises(RemoteError, match=r"alone: .*no such bucket"):
        pod.push_built([entry], [])


def test_a_listing_that_lags_costs_only_requests(
    filled_s3: str, store: LocalStore, tmp_path: Path, tier_of: TierOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = tier_of(filled_s3)

    async def empty(folder: str, *, deep: bool = False) -> dict[str, int | None]:
        return {}

    monkeypatch.setattr(tier.files, "names", empty)
    done = tier.files.run(push(tier, store, list(store.entries())))
    assert (done.pushed, len(done.present)) == ((), 4)
    # A builder knows the whole key, and needs no listing.
    key = fake_key(2)
    assert tier.files.run(tier.bring([Wanted(key, dict(key.parts))], LocalStore(tmp_path / "pod"))) == [True]


# --- read-only http ------------------------------------------------------------------------------------------------


def test_nginx_serves_a_store_read_only(store: LocalStore, tmp_path: Path) -> None:
    fill(store, 1, 2)
    with nginx_server(tmp_path / "nginx", store.root) as web:
        pod = TieredStore(tmp_path / "pod", [parse(web.url)])
        assert pod.bring([wanted(1), wanted(2), wanted(3)])
        assert len(list(pod.entries())) == 2
        assert (pod.troubles, pod.faults) == ([], [])
        with pytest.raises(RemoteError, match="can be written"):
            TieredStore(tmp_path / "pod", [parse(web.url)], push=True)


def test_a_server_that_lists_nothing_serves_exact_keys(store: LocalStore, tmp_path: Path) -> None:
    fill(store, 1)
    with nginx_server(tmp_path / "nginx", store.root, listing=False) as web:
        builder = TieredStore(tmp_path / "builder", [parse(web.url)])
        assert builder.bring([Wanted(fake_key(1), dict(fake_key(1).parts))])
        assert not builder.bring([wanted(2)])
        assert builder.troubles == []
