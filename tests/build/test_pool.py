"""Workers that hang, crash, eat memory or print; and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphcache.build.pool import Answer, Death, Limits, Pool, Worker
from graphcache.graph import Graph
from tests.store.processes import kill, start
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import COMMAND, REVISION, fake_program

LIMITS = Limits(secs=60, memory_bytes=1 << 30)
MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[MakePool]:
    made: list[Pool] = []

    def make(size: int = 1, limits: Limits = LIMITS) -> Pool:
        made.append(Pool(size, fusion=8, limits=limits, scratch=tmp_path, command=COMMAND))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def ready(pool: Pool) -> Worker:
    pool.grow(1)
    while not pool.idle():
        assert pool.wait() == []
    return pool.idle()[0]


def event(pool: Pool) -> Answer | Death:
    while True:
        for one in pool.wait():
            return one


def ask(pool: Pool, worker: Worker, graph: Graph) -> Answer | Death:
    pool.send(worker, {"op": "export", "graph": graph.as_json()})
    answer = event(pool)
    assert isinstance(answer, Answer)
    if "error" in answer.value:
        return answer
    pool.send(worker, {"op": "compile"})
    return event(pool)


def test_a_worker_answers_with_program_cost_and_bytes(make_pool: MakePool) -> None:
    pool, graph = make_pool(), fake_graph("g", print="from native code")
    worker = ready(pool)
    assert worker.revision == REVISION
    pool.send(worker, {"op": "export", "graph": graph.as_json()})
    exported = event(pool)
    assert isinstance(exported, Answer)
    assert exported.value["program"] == fake_program(graph)
    pool.send(worker, {"op": "compile"})
    compiled = event(pool)
    assert isinstance(compiled, Answer)
    assert [len(part) for part in compiled.payload] == compiled.value["sizes"]
    assert compiled.payload[0].startswith(b"runnable ")
    assert set(compiled.value["cost"]) == {"wall_secs", "cpu_secs", "peak_rss_bytes"}
    assert compiled.value["cost"]["peak_rss_bytes"] > 1 << 20
    assert worker.log.read_text() == "from native code\n"


def test_a_worker_is_used_again_and_again(make_pool: MakePool) -> None:
    pool = make_pool()
    worker = ready(pool)
    for i in range(20):
        answer = ask(pool, worker, fake_graph(f"g{i}", elements=i + 1))
        assert isinstance(answer, Answer)
        assert answer.payload
    assert pool.workers == [worker]


def test_an_error_is_an_answer_and_the_worker_goes_on(make_pool: MakePool) -> None:
    pool = make_pool()
    worker = ready(pool)
    refused = ask(pool, worker, fake_graph("bad", error="Not importable, no such operator"))
    assert isinstance(refused, Answer)
    assert refused.value["error"]["message"] == "Not importable, no such operator"
    assert refused.value["retryable"] is False
    assert "no such operator" in worker.log.read_text()
    assert isinstance(ask(pool, worker, fake_graph("good")), Answer)


def test_a_worker_that_an_export_has_changed_is_given_no_other_graph(make_pool: MakePool) -> None:
    pool = make_pool()
    worker = ready(pool)
    refused = ask(pool, worker, fake_graph("bad", spoils="changes torch's default dtype"))
    assert isinstance(refused, Answer)
    assert refused.value["error"]["message"] == "changes torch's default dtype"
    assert "changes torch's default dtype" in worker.log.read_text()
    assert pool.workers == []
    assert ready(pool) is not worker


@pytest.mark.parametrize(
    ("constants", "retryable"),
    [
        ({"passing": "No space left on device"}, True),
        ({"half": True}, True),
        ({"error": "io error: No space left on device (os error 28)"}, True),
        ({"error": "Not importable"}, False),
    ],
)
def test_what_the_machine_caused_is_worth_another_try(
    make_pool: MakePool, constants: dict[str, object], retryable: bool
) -> None:
    pool = make_pool()
    answer = ask(pool, ready(pool), fake_graph("g", **constants))
    assert isinstance(answer, Answer)
    assert answer.value["retryable"] is retryable


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"signal": "SEGV"}, "SIGSEGV"),
        ({"signal": "ABRT"}, "gets no memory"),
        ({"signal": "BUS"}, "failing disk"),
        ({"signal": "KILL"}, "memory is short"),
        ({"signal": "TERM"}, "SIGTERM"),
        ({"exit": 3}, "exit code 3"),
    ],
)
def test_a_worker_that_dies_says_how(make_pool: MakePool, constants: dict[str, object], words: str) -> None:
    pool = make_pool()
    death = ask(pool, ready(pool), fake_graph("g", **constants))
    assert isinstance(death, Death)
    assert words in death.cause
    assert death.retryable, "what ends a process may be the machine"
    assert pool.workers == []
    assert isinstance(ask(pool, ready(pool), fake_graph("next")), Answer), "its place was taken by another"


def test_a_worker_that_takes_too_long_is_killed(make_pool: MakePool) -> None:
    pool = make_pool(limits=Limits(secs=1.0, memory_bytes=1 << 30))
    worker = ready(pool)
    death = ask(pool, worker, fake_graph("g", secs=60))
    assert isinstance(death, Death)
    assert "not done after 1 s" in death.cause
    assert death.retryable
    assert worker.process.returncode == -signal.SIGKILL


def test_a_worker_that_eats_memory_is_killed(make_pool: MakePool) -> None:
    pool = make_pool(limits=Limits(secs=60, memory_bytes=200_000_000))
    death = ask(pool, ready(pool), fake_graph("g", eat_bytes=400_000_000, secs=60))
    assert isinstance(death, Death)
    assert "the limit is 200 MB" in death.cause


def test_closing_ends_every_worker(make_pool: MakePool) -> None:
    pool = make_pool(size=2)
    pool.grow(2)
    while len(pool.idle()) < 2:
        pool.wait()
    workers = list(pool.workers)
    pool.send(workers[0], {"op": "export", "graph": fake_graph("g").as_json()})
    pool.close()
    assert [worker.process.returncode for worker in workers] == [-signal.SIGKILL] * 2


def test_a_worker_gets_none_of_the_environment(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CANNOT_START", "1")
    assert ready(make_pool()).revision == REVISION


def test_a_parent_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    place = tmp_path / "worker-pid"

    def parent() -> None:
        pool = Pool(1, fusion=8, limits=LIMITS, scratch=tmp_path, command=COMMAND)
        worker = ready(pool)
        pool.send(worker, {"op": "export", "graph": fake_graph("g").as_json()})
        event(pool)
        pool.send(worker, {"op": "compile"})
        (tmp_path / "part").write_text(str(worker.process.pid))
        os.rename(tmp_path / "part", place)
        time.sleep(60)

    child = start(parent)
    while not place.exists():
        time.sleep(0.01)
    pid = int(place.read_text())
    kill(child)
    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether the process exists and is no zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
