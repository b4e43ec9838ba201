"""Leases on what hosts share: one holder at a time, a dead one succeeded in bounded time, whatever the clocks say.

Shared folders here have everything that NFS may do: no lock works, names come late, clocks are a day apart, two hosts
have the same process id.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphcache.build.report import Silent
from graphcache.graph import Graph
from graphcache.remote.files import FolderFiles, open_files
from graphcache.remote.lease import Leases
from graphcache.remote.tiered import TieredStore
from graphcache.remote.url import RemoteError, RemoteUrl, parse
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.remote.conftest import fill
from tests.store.processes import kill, start
from tests.support.fake_build import FakeMachine, states
from tests.support.fake_graphs import fake_graph

KEY = "ab" * 32


class Clock:
    """A builder's own, which starts anywhere."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def leases(url: str) -> Callable[[Clock], Leases]:
    files = open_files(parse(url))
    return lambda clock: Leases(files, secs=1000.0, clock=clock)


def test_one_holder_at_a_time(leases: Callable[[Clock], Leases]) -> None:
    a, b = leases(Clock(0)), leases(Clock(86_400))
    assert a.take(KEY)
    assert not b.take(KEY)
    a.release(KEY)
    assert b.take(KEY)


def test_a_dead_holder_is_succeeded_by_one_watcher(leases: Callable[[Clock], Leases]) -> None:
    """The watchers' clocks are a day apart; only what passes on each counts."""
    first, second = Clock(0), Clock(-86_400)
    dead, a, b = leases(Clock(7e9)), leases(first), leases(second)
    assert dead.take(KEY)
    for clock in (first, second):
        clock.now += 5
    assert [a.take(KEY), b.take(KEY)] == [False, False]
    for clock in (first, second):
        clock.now += 999
    assert [a.take(KEY), b.take(KEY)] == [False, False], "not yet"
    for clock in (first, second):
        clock.now += 2
    assert [a.take(KEY), b.take(KEY)] == [True, False]
    second.now += 900
    assert not b.take(KEY), "the new holder was met only now"


def test_a_holder_that_lives_keeps_it(tmp_path: Path) -> None:
    files = FolderFiles(RemoteUrl("file", str(tmp_path)))
    a, b = Leases(files, secs=0.6), Leases(files, secs=0.6)
    assert a.take(KEY)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert not b.take(KEY)
        time.sleep(0.05)
    a.release(KEY)
    assert b.take(KEY)
    b.release(KEY)


@pytest.mark.parametrize("data", [b"", b"{}", b"x" * 100_000])
def test_a_damaged_lease_runs_out(data: bytes, tmp_path: Path) -> None:
    files, clock = FolderFiles(RemoteUrl("file", str(tmp_path))), Clock(0)
    files.run(files.put(f"leases/{KEY}/0.json", data, new=True))
    watcher = Leases(files, secs=10, clock=clock)
    assert not watcher.take(KEY)
    clock.now += 11
    assert watcher.take(KEY)


def test_a_remote_that_does_not_answer_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FolderFiles(RemoteUrl("file", str(tmp_path)))

    async def silent(*args: object, **kwargs: object) -> dict[str, int | None]:
        raise RemoteError("no answer")

    monkeypatch.setattr(files, "names", silent)
    assert Leases(files).take(KEY)


# --- builds on a shared folder --------------------------------------------------------------------------------------

GRAPHS = [fake_graph(f"g{i}", elements=i + 1, secs=0.2) for i in range(5)]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine whose cache is a folder that others share, without locks that work."""
    monkeypatch.setenv("GRAPHCACHE_SHARED", "1")
    monkeypatch.setenv("GRAPHCACHE_LEASE_SECS", "4")
    monkeypatch.setattr(fcntl, "flock", lambda handle, how: None)
    machine = FakeMachine(tmp_path, monkeypatch)
    machine.store = TieredStore(tmp_path / "cache", [])
    return machine


def test_two_hosts_compile_each_graph_once(shared: FakeMachine) -> None:
    """With the same process ids, as forks that share all but memory; the second comes back for what the first did."""
    child = start(lambda: shared.build(GRAPHS, jobs=1, store=TieredStore(shared.store.root, [])) and None)
    while not shared.compiled:
        time.sleep(0.01)
    report = shared.build(GRAPHS, jobs=1, store=TieredStore(shared.store.root, []))
    os.waitpid(child, 0)
    assert len(report.failed) == 0
    assert sorted(shared.compiled) == sorted(graph.name for graph in GRAPHS)
    assert verify(shared.store).sound
    assert list((shared.store.root / "leases").rglob("*.json")) == []


def test_what_a_killed_host_was_at_is_compiled_by_another(shared: FakeMachine) -> None:
    slow: list[Graph] = [fake_graph("slow", elements=9, secs=600, program="p"), *GRAPHS[:1]]
    quick = [fake_graph("slow", elements=9, secs=0, program="p"), *GRAPHS[:1]]
    child = start(lambda: shared.build(slow, jobs=1, store=TieredStore(shared.store.root, [])) and None)
    while "slow" not in shared.compiled:
        time.sleep(0.01)
    kill(child)
    waited: list[str] = []

    class Notes(Silent):
        def elsewhere(self, graph: Graph) -> None:
            waited.append(graph.name)

    report = shared.build(quick, jobs=1, listener=Notes())
    assert states(report) == {"slow": "compiled", "g0": "compiled"}
    assert waited == ["slow"], "the other graph was taken first"


def test_names_that_come_late_only_cost_work(shared: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For half a second nobody sees what another host has made: both compile, and one whole pair is left."""
    original, begun = os.open, time.monotonic()

    def late(path: object, flags: int, *args: int, **more: object) -> int:
        reading = not flags & os.O_CREAT and "/entries/" in str(path) and str(path).endswith(".json")
        if reading and time.monotonic() - begun < 0.5:
            raise FileNotFoundError(2, "not yet", str(path))
        return original(path, flags, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", late)
    stores = [TieredStore(shared.store.root, []) for _ in range(2)]
    threads = [
        threading.Thread(target=fill, args=(store, 1, 2, 3), kwargs={"salt": salt})
        for store, salt in zip(stores, "ab", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(os, "open", original)
    report = verify(LocalStore(shared.store.root))
    assert report.sound
    assert len(report.entries) == 3
