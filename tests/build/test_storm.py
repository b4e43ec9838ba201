"""Builds killed at random moments: nothing that was committed is lost, nothing half-written is left."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from graphcache.build.report import Outcome, Silent
from graphcache.verify.integrity import verify
from tests.store.processes import kill, start
from tests.support.fake_build import FakeMachine, states
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION
from tests.support.storms import rounds

BUILDS = rounds(40, 200)
# Between the start of a compile and its commit lie about 10 ms.
JITTER_SECS = 0.05


class Notes(Silent):
    """Writes each graph's name to a file when the build says that it is committed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def finished(self, outcome: Outcome) -> None:
        if outcome.state == "compiled":
            os.write(self._file, f"{outcome.graph.name}\n".encode())


@pytest.mark.stress
def test_killed_builds_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, notes = FakeMachine(tmp_path, monkeypatch), tmp_path / "committed"
    machine.known = REVISION
    chance = random.Random(0)
    every = [fake_graph(f"g{i}", elements=i + 2) for i in range(BUILDS)]
    for i in range(BUILDS):
        # Some that are there, some that are new, and one that is still compiled when all others are done.
        graphs = [*every[max(0, i - 3) : i + 1], fake_graph(f"slow{i}", elements=1, secs=60, number=i)]
        until = len(machine.compiled) + chance.randint(0, 2)
        child = start(lambda graphs=graphs: machine.build(graphs, listener=Notes(notes)) and None)
        while len(machine.compiled) < until:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, JITTER_SECS))
        kill(child)
        report = verify(machine.store)
        assert report.sound, report.faults
        committed = set(notes.read_text().split()) if notes.exists() else set()
        assert committed <= {entry.graph.name for entry in report.entries}
    assert len(list(machine.store.entries())) > BUILDS / 10, "kills came too early to show anything"
    assert set(states(machine.build(every)).values()) <= {"ready", "compiled", "same program"}
    assert verify(machine.store).sound
