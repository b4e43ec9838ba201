"""A graph of several ways: which one a build takes, what it keeps of those that failed, and what a look-up finds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphcache.build.report import Silent, Trouble
from graphcache.graph import Combined, Graph, Way
from graphcache.lookup import look_up
from graphcache.plan import PlanItem
from graphcache.proof.verdict import State
from graphcache.way import way_for, ways_of
from tests.store.fakes import fake_verdict
from tests.support.fake_build import FakeMachine, fake_toolchain, states
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION

NO_WORKER = (sys.executable, "-c", "raise SystemExit('a worker was started')")
JOIN = fake_graph("join", elements=65)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine(tmp_path, monkeypatch)
    made.known = REVISION
    return made


def tiled(*tiles: Graph, **constants: Any) -> Graph:
    """A graph of 64 rows, and ways of fewer, each of which needs JOIN."""
    ways = (Way(tile, 64 // tile.args[0].elements, (Combined("join", JOIN),)) for tile in tiles)
    return replace(fake_graph("whole", elements=64, **constants), ways=tuple(ways))


def tile(rows: int, **constants: Any) -> Graph:
    return fake_graph(f"tile{rows}", elements=rows, **constants)


class Told(Silent):
    def __init__(self) -> None:
        self.refusals: list[tuple[str, str, str]] = []

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        self.refusals.append((item.made.name, trouble.cause, following.made.name))


def test_the_first_way_is_the_graph_itself(machine: FakeMachine) -> None:
    report = machine.build([tiled(tile(32))])
    assert states(report) == {"whole": "compiled"}
    assert machine.compiled == ["whole"], "neither the tile nor what it needs"


def test_the_next_way_is_taken_when_the_compiler_refuses(machine: FakeMachine) -> None:
    told = Told()
    graph = tiled(
        tile(32, error="all tactics failed to compile"), tile(16), tile(8), error="while lowering TacticKernel"
    )
    report = machine.build([graph], listener=told)
    assert states(report) == {"whole": "compiled", "join": "compiled"}
    assert machine.compiled == ["whole", "tile32", "tile16", "join"]
    assert told.refusals == [
        ("whole", "while lowering TacticKernel", "tile32"),
        ("tile32", "all tactics failed to compile", "tile16"),
    ]
    found = report.outcomes[0].as_json()
    assert (found["way"], found["calls"]) == ("tile16", 4)
    assert found["refused"] == [
        {"graph": "whole", "cause": "while lowering TacticKernel"},
        {"graph": "tile32", "cause": "all tactics failed to compile"},
    ]
    assert report.outcomes[0].entry is not None
    assert report.outcomes[0].entry.graph.name == "tile16"


def test_what_was_built_is_ready_and_nothing_is_tried_again(machine: FakeMachine) -> None:
    graph = tiled(tile(16), error="while lowering TacticKernel")
    machine.build([graph])
    again = machine.build([graph], worker=NO_WORKER)
    assert states(again) == {"whole": "ready", "join": "ready"}
    assert again.outcomes[0].item.note == "as 4 calls of tile16; whole is refused: while lowering TacticKernel"


def test_a_graph_with_no_way_that_compiles_failed(machine: FakeMachine) -> None:
    graph = tiled(tile(16, error="while lowering TacticKernel"), error="while lowering TacticKernel")
    for _ in range(2):
        report = machine.build([graph])
        assert states(report) == {"whole": "failed"}
    assert machine.compiled == ["whole", "tile16"]
    machine.build([graph], retry=True)
    assert machine.compiled == ["whole", "tile16"] * 2


def test_what_the_machine_caused_is_no_reason_for_another_way(machine: FakeMachine) -> None:
    graph = tiled(tile(16), passing="disk")
    for _ in range(2):
        assert states(machine.build([graph])) == {"whole": "failed"}
    assert machine.compiled == ["whole", "whole"]


def test_a_way_over_the_time_limit_gives_way_for_this_and_later_builds(machine: FakeMachine) -> None:
    graph = tiled(tile(16), secs=60)
    report = machine.build([graph], timeout_secs=1.0)
    assert states(report) == {"whole": "compiled", "join": "compiled"}
    assert "not done after 1 s" in report.outcomes[0].item.refused[0].cause
    assert states(machine.build([graph], worker=NO_WORKER)) == {"whole": "ready", "join": "ready"}


def test_a_failure_under_the_same_program_of_another_source_counts(machine: FakeMachine) -> None:
    machine.build([fake_graph("elsewhere", program="p", error="while lowering TacticKernel")])
    report = machine.build([tiled(tile(16), program="p", secs=0)])
    assert states(report) == {"whole": "compiled", "join": "compiled"}
    assert machine.compiled == ["elsewhere", "tile16", "join"]


def test_reuse_takes_what_the_cache_has(machine: FakeMachine) -> None:
    machine.build([tile(16)])
    graph = tiled(tile(32), tile(16))
    assert states(machine.build([graph], reuse=True)) == {"whole": "ready", "join": "compiled"}
    assert machine.compiled == ["tile16", "join"]
    # Without it what is built depends on no other build.
    assert states(machine.build([graph])) == {"whole": "compiled"}


def look(machine: FakeMachine, graph: Graph) -> list[PlanItem]:
    return look_up([graph], store=machine.store, toolchain=fake_toolchain(revision=REVISION))


def test_a_trainer_takes_the_way_of_the_least_estimate(machine: FakeMachine) -> None:
    """The fake compiler estimates 1,000 ns and 1 for each element."""
    graph = tiled(tile(32), tile(16))
    machine.build([tile(32), tile(16), JOIN])
    items = look(machine, graph)
    assert [(item.made.name, item.calls) for item in items] == [("tile32", 2), ("join", 1)]
    assert items[0].estimate_ns == 2 * 1032
    machine.build([graph])
    assert [item.made.name for item in look(machine, graph)] == ["whole"]


def test_a_trainer_takes_no_way_that_lacks_what_it_needs_while_another_is_whole(machine: FakeMachine) -> None:
    slow = replace(tiled(tile(32)), args=fake_graph("x", elements=1 << 20).args)
    machine.build([slow, tile(32)])
    assert [item.made.name for item in look(machine, slow)] == ["whole"]
    machine.build([JOIN])
    assert [item.made.name for item in look(machine, slow)] == ["tile32", "join"]


def test_an_artifact_is_of_the_way_that_takes_its_arguments() -> None:
    graph = tiled(tile(32), tile(16))
    assert [str(way) for way in ways_of(graph)] == ["whole", "2 calls of tile32", "4 calls of tile16"]
    assert way_for(graph, tile(16).args) == graph.ways[1]
    assert way_for(graph, tile(8).args) is None


def judge(machine: FakeMachine, graph: Graph, state: State) -> None:
    (entry,) = (entry for entry in machine.store.entries() if entry.graph.name == graph.name)
    machine.store.record_verdict(fake_verdict(entry, state))


def test_a_disproven_way_is_passed_over_by_build_and_trainer(machine: FakeMachine) -> None:
    graph = tiled(tile(32), tile(16))
    machine.build([graph, tile(32), JOIN])
    judge(machine, graph, "disproven")
    assert [item.made.name for item in look(machine, graph)] == ["tile32", "join"]
    report = machine.build([graph], worker=NO_WORKER)
    assert states(report) == {"whole": "ready", "join": "ready"}
    (refused,) = report.outcomes[0].item.refused
    assert refused.graph == "whole"
    assert refused.cause == machine.build([fake_graph("whole", elements=64)]).outcomes[0].item.reason


def test_a_proven_way_goes_before_a_quicker_one(machine: FakeMachine) -> None:
    graph = tiled(tile(32))
    machine.build([graph, tile(32), JOIN])
    assert [item.made.name for item in look(machine, graph)] == ["whole"]
    judge(machine, tile(32), "proven")
    assert [item.made.name for item in look(machine, graph)] == ["tile32", "join"]
    judge(machine, graph, "proven")
    assert [item.made.name for item in look(machine, graph)] == ["whole"]
