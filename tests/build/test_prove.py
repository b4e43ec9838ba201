"""Proofs as a job and as part of a build, with a worker whose verdicts are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.build import prove as prove_module
from graphcache.build.prove import Proven, Quiet, prove
from graphcache.local.memo import memo_of
from graphcache.store.base import Entry
from graphcache.store.find import find
from tests.support.fake_build import OPTIONS, FakeMachine, fake_toolchain, states
from tests.support.fake_graphs import fake_graph


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(prove_module, "runtime_parts", fake_toolchain)
    return FakeMachine(tmp_path, monkeypatch)


def build(machine: FakeMachine, **graphs: dict[str, object]) -> list[Entry]:
    listed = [fake_graph(name, elements=i + 1, **constants) for i, (name, constants) in enumerate(graphs.items())]
    return [outcome.entry for outcome in machine.build(listed).outcomes if outcome.entry]


class Recorder(Quiet):
    def __init__(self) -> None:
        self.order: list[str] = []

    def started(self, entry: Entry, secs: float) -> None:
        self.order.append(entry.graph.name)


def proven(machine: FakeMachine, entries: list[Entry], **options: object) -> dict[str, Proven]:
    timeout = replace(OPTIONS, worker=machine.worker, timeout_secs=float(str(options.pop("timeout_secs", 60))))
    with memo_of(machine.store.root) as memo:
        found = prove(machine.store, entries, memo, options=replace(timeout, jobs=1), **options)  # type: ignore[arg-type]
    return {each.entry.graph.name: each for each in found}


def test_shortest_first_and_each_verdict_is_kept(machine: FakeMachine) -> None:
    entries = build(machine, long={"products": 10**9}, short={"products": 10**6}, middle={"products": 10**8})
    recorder = Recorder()
    found = proven(machine, entries, listener=recorder)
    assert recorder.order == ["short", "middle", "long"]
    assert {name: (each.ending, each.fresh) for name, each in found.items()} == dict.fromkeys(found, ("proven", True))
    assert all(machine.store.verdict(entry) is not None for entry in entries)
    again = proven(machine, entries, listener=recorder)
    assert [each.fresh for each in again.values()] == [False] * 3
    assert len(recorder.order) == 3
    assert proven(machine, entries, again=True)["long"].fresh


def test_what_does_not_fit_into_the_budget_is_left(machine: FakeMachine) -> None:
    entries = build(machine, hours={"products": 10**14}, short={})
    found = proven(machine, entries, budget_secs=60.0)
    assert found["short"].ending == "proven"
    assert found["hours"].ending == "left"
    assert (found["hours"].expected_secs or 0) > 3600
    assert machine.store.verdict(entries[0]) is None


def test_a_proof_that_takes_longer_than_the_budget_is_stopped_and_left(machine: FakeMachine) -> None:
    entries = build(machine, slow={"prove_secs": 60}, next={"products": 10**7})
    found = proven(machine, entries, budget_secs=6.0)
    assert {name: each.ending for name, each in found.items()} == {"slow": "left", "next": "left"}
    assert "had not ended after" in found["slow"].reason
    assert proven(machine, entries[1:])["next"].ending == "proven"


def test_a_disproven_artifact_serves_nobody(machine: FakeMachine) -> None:
    (entry,) = build(machine, wrong={"verdict": "disproven"})
    assert proven(machine, [entry])["wrong"].ending == "disproven"
    assert (
        find(machine.store, entry.program, {k: v for k, v in entry.key.parts.items() if k != "program"}).entry is None
    )
    report = machine.build([entry.graph])
    assert states(report) == {"wrong": "failed"}
    assert report.failed[0].trouble is not None
    assert "disproven: made up" in report.failed[0].trouble.cause


def test_a_crash_is_no_verdict(machine: FakeMachine) -> None:
    entries = build(machine, dies={"prove_signal": "SEGV"}, ok={}, slow={"prove_secs": 60})
    found = proven(machine, entries, timeout_secs=3)
    assert {name: each.ending for name, each in found.items()} == {"dies": "failed", "ok": "proven", "slow": "failed"}
    assert "SIGSEGV" in found["dies"].reason
    assert "not done after" in found["slow"].reason
    assert machine.store.verdict(entries[0]) is None


def test_entries_of_another_compiler_are_skipped(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = build(machine, a={})
    newer = {**fake_toolchain(), "furiosa-torch": "1.fake"}
    monkeypatch.setattr(prove_module, "runtime_parts", lambda fusion, memo: newer)
    assert proven(machine, entries)["a"].reason == "another toolchain: furiosa-torch 0.fake -> 1.fake"


def test_a_build_proves_what_costs_less_than_its_compile(machine: FakeMachine) -> None:
    graphs = [
        fake_graph("cheap", elements=1, secs=0.3),
        fake_graph("dear", elements=2, products=10**12),
        fake_graph("wrong", elements=3, secs=0.3, verdict="disproven"),
        fake_graph("dies", elements=4, secs=0.3, prove_signal="SEGV"),
    ]
    report = machine.build(graphs, prove=True)
    assert states(report) == {"cheap": "compiled", "dear": "compiled", "wrong": "failed", "dies": "compiled"}
    entries = {entry.graph.name: entry for entry in machine.store.entries()}
    verdicts = {name: machine.store.verdict(entry) for name, entry in entries.items()}
    assert {name: verdict and verdict.state for name, verdict in verdicts.items()} == {
        "cheap": "proven",
        "dear": None,
        "wrong": "disproven",
        "dies": None,
    }
    assert states(machine.build(graphs)) == {"cheap": "ready", "dear": "ready", "wrong": "failed", "dies": "ready"}
