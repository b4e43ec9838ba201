"""What a machine does to a compile is never remembered as the compiler's refusal; real texts, a made-up compiler.

`tests/compiler/test_machine_faults.py` fails the real one in the same ways.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from graphcache.store.base import Failure
from tests.support import machine_texts
from tests.support.fake_build import FakeMachine, states
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    return FakeMachine(tmp_path, monkeypatch)


@pytest.mark.parametrize("text", machine_texts.ALL)
def test_each_is_tried_again_by_the_next_build(machine: FakeMachine, text: str) -> None:
    graph = fake_graph("g", error=text)
    for times in (1, 2):
        report = machine.build([graph])
        assert states(report) == {"g": "failed"}
        assert report.failed[0].trouble is not None
        assert report.failed[0].trouble.retryable
        assert machine.compiled == ["g"] * times


def test_a_judgement_is_none_when_the_log_tells_of_the_machine(machine: FakeMachine) -> None:
    """All tactics may fail since none can write, and the message does not say so."""
    graph = fake_graph("g", error="all tactics failed to compile", print=machine_texts.DISK_FULL)
    machine.build([graph])
    machine.build([graph])
    assert machine.compiled == ["g", "g"]


@pytest.mark.parametrize("others", [0, 5])
def test_a_worker_whose_folder_is_taken_is_replaced_within_the_build(
    machine: FakeMachine, tmp_path: Path, others: int
) -> None:
    graphs = [
        fake_graph("g", loses=str(tmp_path / "seen")),
        *(fake_graph(f"o{i}", elements=i + 1) for i in range(others)),
    ]
    report = machine.build(graphs, jobs=1)
    assert set(states(report).values()) == {"compiled"}
    assert machine.compiled.count("g") == 2
    assert machine.store.failures() == []
    assert list((tmp_path / "temporary").iterdir()) == [], "nor is anything left"


def test_all_workers_of_a_build_lose_all_folders(machine: FakeMachine, tmp_path: Path) -> None:
    """The cleaner takes the build's folder with everything in it, under two workers."""
    graphs = [fake_graph(f"g{i}", elements=i + 1, loses=str(tmp_path / f"seen{i}")) for i in range(6)]
    report = machine.build(graphs, jobs=2)
    assert set(states(report).values()) == {"compiled"}


def test_a_cleaner_that_does_not_rest_ends_in_a_failure_that_is_not_kept_for_good(
    machine: FakeMachine, tmp_path: Path
) -> None:
    graph = fake_graph("g", loses=str(tmp_path / "seen"), again=True)
    report = machine.build([graph])
    assert states(report) == {"g": "failed"}
    assert machine.compiled == ["g"] * 3
    assert [failure.retryable for failure in machine.store.failures()] == [True]


def test_a_cache_that_remembers_a_fault_of_the_machine_for_good_is_healed(machine: FakeMachine) -> None:
    """As the release before wrote it: nine graphs of ten, after a cleaner had been there."""
    machine.known = REVISION
    graph = fake_graph("g", error=machine_texts.FOLDER_GONE)
    machine.build([graph])
    (record,) = machine.store.failures()
    whole = {**vars(record), "retryable": False}
    machine.store.record_failure(Failure(**whole))
    report = machine.build([graph])
    assert machine.compiled == ["g", "g"]
    assert [failure.retryable for failure in machine.store.failures()] == [True]
    assert report.failed[0].trouble is not None
    assert report.failed[0].trouble.retryable


def test_a_clock_that_is_set_back_fails_nothing(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = time.time(), iter(range(1_000_000))
    monkeypatch.setattr(time, "time", lambda: now - 3600.0 * next(calls))
    graphs = [fake_graph(f"g{i}", elements=i + 1) for i in range(3)]
    assert set(states(machine.build(graphs)).values()) == {"compiled"}
    assert set(states(machine.build(graphs)).values()) == {"ready"}
