"""Tuning: other ways are compiled too, what takes too long is given up, and the quickest proven one is taken."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphcache.build import prove as prove_module
from graphcache.build import tune as tune_module
from graphcache.build.report import Outcome
from graphcache.build.tune import Tuned, tune
from graphcache.graph import Combined, Graph, Way
from graphcache.local.memo import memo_of
from graphcache.store.programs import Programs
from tests.support.fake_build import OPTIONS, FakeMachine, fake_toolchain
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION

# The fake compiler's estimate is 1,000 ns and one for each element of the first argument.
JOIN = fake_graph("join", elements=9)
NO_WORKER = (sys.executable, "-c", "raise SystemExit('a worker was started')")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(prove_module, "runtime_parts", fake_toolchain)
    made = FakeMachine(tmp_path, monkeypatch)
    made.known = REVISION
    return made


class Recorder:
    def __init__(self) -> None:
        self.tried_graphs: list[str] = []
        self.proven: list[list[str]] = []

    def trying(self, graph: Graph, ways: Sequence[Graph], limit_secs: float) -> None:
        self.tried_graphs.append(graph.name)

    def tried(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def proving(self, graphs: Sequence[str]) -> None:
        self.proven.append(list(graphs))


def graph(name: str, elements: int, *ways: Graph, **constants: Any) -> Graph:
    """A graph, and ways of one call, the last of which needs JOIN."""
    listed = [Way(way) for way in ways]
    if listed:
        listed[-1] = replace(listed[-1], results=(Combined("join", JOIN),))
    return replace(fake_graph(name, elements=elements, **constants), ways=tuple(listed))


def tuned(machine: FakeMachine, graphs: Sequence[Graph], listener: Any = None, **options: Any) -> dict[str, Tuned]:
    over, budget_secs = options.pop("over", 4.0), options.pop("budget_secs", None)
    weights = options.pop("weights", {})
    with memo_of(machine.store.root, building=True) as memo:
        found = tune(
            graphs,
            weights,
            machine.store,
            memo,
            programs=Programs(machine.store.root),
            options=replace(OPTIONS, **{"worker": machine.worker, "jobs": 1, "prove": True, **options}),
            over=over,
            budget_secs=budget_secs,
            listener=listener or Recorder(),
        )
    return {each.graph.name: each for each in found}


def test_the_quickest_proven_way_is_taken(machine: FakeMachine) -> None:
    found = tuned(
        machine, [graph("whole", 500, fake_graph("slower", elements=900), fake_graph("quicker", elements=20))]
    )
    each = found["whole"]
    assert sorted(machine.compiled) == ["join", "quicker", "slower", "whole"]
    assert (each.before.made.name, each.after.made.name) == ("whole", "quicker")
    assert each.after.is_proven
    assert each.share == pytest.approx(1020 / 1500)
    assert (each.refused, each.left) == ((), 0)


def test_again_nothing_is_compiled(machine: FakeMachine) -> None:
    graphs = [graph("whole", 500, fake_graph("bad", elements=1, error="while lowering TacticKernel"))]
    first = tuned(machine, graphs)["whole"]
    assert "while lowering TacticKernel" in first.refused[0]
    count = len(machine.compiled)
    again = tuned(machine, graphs, worker=NO_WORKER)["whole"]
    assert again.as_json() == first.as_json()
    assert len(machine.compiled) == count


def test_a_disproven_way_is_passed_over_for_the_next(machine: FakeMachine) -> None:
    wrong = fake_graph("wrong", elements=1, verdict="disproven", products=10**9)
    found = tuned(machine, [graph("whole", 500, wrong, fake_graph("right", elements=100))])
    assert found["whole"].after.made.name == "right"


def test_within_two_percent_the_one_that_compiled_sooner_is_taken(machine: FakeMachine) -> None:
    near = fake_graph("near", elements=490, secs=2)
    found = tuned(machine, [graph("whole", 500, near)])
    assert found["whole"].after.made.name == "whole"


def test_the_graph_with_the_most_device_time_comes_first(machine: FakeMachine) -> None:
    graphs = [
        graph("seldom", 900, fake_graph("seldom way", elements=30)),
        graph("often", 100, fake_graph("often way", elements=31)),
    ]
    recorder = Recorder()
    tuned(machine, graphs, recorder, weights={"often": 30})
    assert recorder.tried_graphs == ["often", "seldom"]


def test_a_way_that_takes_a_multiple_of_the_first_is_given_up(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_module, "LEAST_SECS", 2.0)
    slow = fake_graph("slow", elements=1, secs=60)
    graphs = [graph("whole", 500, slow)]
    each = tuned(machine, graphs)["whole"]
    assert "not done after" in each.refused[0]
    assert each.after.made.name == "whole"
    count = machine.compiled.count("slow")
    tuned(machine, graphs)
    assert machine.compiled.count("slow") == count, "it is not tried again"


def test_what_the_budget_does_not_reach_is_left_and_made_up_for_later(machine: FakeMachine) -> None:
    graphs = [graph("whole", 500, fake_graph("quicker", elements=20))]
    each = tuned(machine, graphs, budget_secs=1e-9)["whole"]
    assert (each.left, each.after.made.name) == (1, "whole")
    assert tuned(machine, graphs)["whole"].after.made.name == "quicker"


def test_a_compile_that_the_budget_cuts_short_is_left_and_not_given_up(machine: FakeMachine) -> None:
    graphs = [graph("whole", 500, fake_graph("quicker", elements=20, secs=3))]
    each = tuned(machine, graphs, budget_secs=1.0)["whole"]
    assert (each.left, each.refused, each.after.made.name) == (1, (), "whole")
    assert tuned(machine, graphs)["whole"].after.made.name == "quicker"


def test_a_graph_that_no_way_compiles_is_reported(machine: FakeMachine) -> None:
    bad = {"error": "while lowering TacticKernel"}
    each = tuned(machine, [graph("whole", 500, fake_graph("other", elements=3, **bad), **bad)])["whole"]
    assert each.after.entry is None
    assert len(each.refused) == 1
