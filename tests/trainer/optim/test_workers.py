from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator

import pytest
import torch

from trainer.optim import workers as workers_module
from trainer.optim.workers import Workers


@pytest.fixture
def two() -> Iterator[Workers]:
    workers = Workers(2)
    yield workers
    workers.close()


def fail_in_a_job() -> None:
    raise ValueError("the first")


def test_every_job_runs_once(two: Workers) -> None:
    done: list[int] = []
    for number in range(100):
        two.submit(lambda number=number: done.append(number))
    two.wait()
    assert sorted(done) == list(range(100))


def test_jobs_run_side_by_side(two: Workers) -> None:
    meeting = threading.Barrier(2, timeout=10)
    for _ in range(2):
        two.submit(meeting.wait)
    two.wait()


def test_a_worker_computes_in_one_thread_and_the_main_thread_in_as_many_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    workers = Workers(2)
    try:
        seen: list[int] = []
        meeting = threading.Barrier(2, timeout=10)
        for _ in range(2):
            workers.submit(lambda: (meeting.wait(), seen.append(torch.get_num_threads())))
        workers.wait()
        assert seen == [1, 1]
        assert torch.get_num_threads() == 3
    finally:
        workers.close()
        torch.set_num_threads(before)


def test_busy_seconds_are_taken_once(two: Workers) -> None:
    two.submit(lambda: sum(range(10_000)))
    two.wait()
    assert two.take_busy_secs() > 0
    assert two.take_busy_secs() == 0


def test_an_error_comes_back_with_its_own_traceback(two: Workers) -> None:
    two.submit(fail_in_a_job)
    with pytest.raises(ValueError, match="the first") as caught:
        two.wait()
    assert "fail_in_a_job" in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError, GeneratorExit])
def test_whatever_ends_a_job_is_seen(two: Workers, error: type[BaseException]) -> None:
    def job() -> None:
        raise error

    two.submit(job)
    with pytest.raises(error):
        two.wait()


def test_a_waiting_main_thread_is_woken_by_an_error_while_another_job_still_runs(two: Workers) -> None:
    release = threading.Event()
    two.submit(lambda: bool(release.wait(10)) or None)
    two.submit(fail_in_a_job)
    with pytest.raises(ValueError, match="the first"):
        two.wait()
    release.set()


def test_what_follows_from_the_first_error_is_dropped(two: Workers) -> None:
    failed, ended = threading.Event(), threading.Event()

    def first() -> None:
        failed.set()
        raise ValueError("the first")

    def follow_up() -> None:
        failed.wait(10)
        with pytest.raises(ValueError, match="the first"):
            two.wait()
        ended.set()
        raise RuntimeError("a follow-up")

    two.submit(follow_up)
    two.submit(first)
    assert ended.wait(10)
    with pytest.raises(ValueError, match="the first"):
        two.wait()


def test_no_job_starts_after_an_error() -> None:
    workers = Workers(1)
    begin, done = threading.Event(), []

    def fail() -> None:
        begin.wait(10)
        raise ValueError("the first")

    workers.submit(fail)
    workers.submit(lambda: done.append(1))
    begin.set()
    with pytest.raises(ValueError, match="the first"):
        workers.wait()
    with pytest.raises(ValueError, match="the first"):
        workers.submit(lambda: done.append(2))
    workers.close()
    assert done == []


def test_nobody_waits_for_workers_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread can only end by an error of ours; then it is an error and not a hang."""
    monkeypatch.setattr(workers_module, "LOOK_SECS", 0.01)
    monkeypatch.setattr(Workers, "_work", lambda self: None)
    workers = Workers(2)
    workers.submit(lambda: None)
    with pytest.raises(RuntimeError, match="1 updates are not done"):
        workers.wait()
    workers.close()


def test_close_drops_what_has_not_begun_and_raises_nothing(two: Workers) -> None:
    two.submit(fail_in_a_job)
    two.close()
    assert not any(t.is_alive() for t in two._threads)


def test_close_does_not_wait_for_ever_for_a_job_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "CLOSE_SECS", 0.05)
    workers, release = Workers(1), threading.Event()
    workers.submit(lambda: bool(release.wait(10)) or None)
    workers.close()
    release.set()


def test_a_main_thread_that_has_not_computed_yet_keeps_its_threads() -> None:
    """In a process of its own, since a thread takes torch's number of threads once."""
    code = """
import torch
from trainer.optim.workers import Workers
torch.set_num_threads(2)
workers = Workers(2)
workers.submit(lambda: torch.ones(10).sum())
workers.wait()
torch.ones(1 << 20).add(1)
print(torch.get_num_threads())
workers.close()
"""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert run.stdout.strip() == "2"
