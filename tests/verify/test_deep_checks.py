"""verify's deep checks, with made-up processes: which entries are asked, and what their answers mean."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.errors import ToolchainError
from graphcache.key import Key
from graphcache.local.memo import memo_of
from graphcache.store.base import Entry
from graphcache.verify import numeric_checks as numeric_module
from graphcache.verify import rebuild as rebuild_module
from graphcache.verify.numeric_checks import numeric_checks
from graphcache.verify.rebuild import rebuilds
from graphcache.verify.verdict import Verdict
from tests.support.fake_build import OPTIONS, FakeMachine, fake_toolchain
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import with_variables

# Answers like `graphcache.verify.numeric` for graphs by their names: "ok", "bad" and "dies".
NUMERIC = """
import json, os, sys
for line in sys.stdin:
    name = json.loads(line)["graph"]["name"]
    if name.startswith("dies"):
        print("executor: boom", file=sys.stderr, flush=True)
        os.abort()
    result = {"dtype": "float32", "max_ulps": 1.25}
    print(json.dumps({"passed": name.startswith("ok"), "problem": "", "results": [result]}), flush=True)
"""
COMMAND = (sys.executable, "-c", NUMERIC)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(numeric_module, "observed", fake_toolchain)
    monkeypatch.setattr(rebuild_module, "identity", fake_toolchain)
    return FakeMachine(tmp_path, monkeypatch)


def entries(machine: FakeMachine, *names: str) -> list[Entry]:
    report = machine.build([fake_graph(name, elements=i + 1) for i, name in enumerate(names)])
    return [outcome.entry for outcome in report.outcomes if outcome.entry]


def numeric(machine: FakeMachine, found: list[Entry]) -> list[Verdict]:
    with memo_of(machine.store.root) as memo:
        return list(numeric_checks(machine.store, found, memo, command=COMMAND))


def rebuild(machine: FakeMachine, found: list[Entry], worker: tuple[str, ...] = ()) -> dict[str, Verdict]:
    with memo_of(machine.store.root) as memo:
        options = replace(OPTIONS, worker=worker or machine.worker)
        return {verdict.entry.graph.name: verdict for verdict in rebuilds(found, memo, options)}


def test_numeric_asks_for_every_entry(machine: FakeMachine) -> None:
    verdicts = numeric(machine, entries(machine, "ok-1", "bad", "ok-2"))
    assert [(v.entry.graph.name, v.state) for v in verdicts] == [
        ("ok-1", "passed"),
        ("bad", "failed"),
        ("ok-2", "passed"),
    ]
    assert verdicts[0].detail == "largest error in ulps: 1.25 float32"
    assert verdicts[0].as_json()["results"] == [{"dtype": "float32", "max_ulps": 1.25}]


def test_an_executor_that_crashes_is_one_graphs_failure(machine: FakeMachine) -> None:
    verdicts = numeric(machine, entries(machine, "ok-1", "dies", "ok-2"))
    assert [v.state for v in verdicts] == ["passed", "failed", "passed"]
    assert "boom" in verdicts[1].detail
    assert "-6" in verdicts[1].detail


def test_entries_of_another_compiler_are_skipped(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = entries(machine, "ok-1")

    def newer(fusion: int, memo: object, revision: str | None = None) -> dict[str, str]:
        return {**fake_toolchain(fusion), "furiosa-torch": "1.fake"}

    monkeypatch.setattr(numeric_module, "observed", newer)
    monkeypatch.setattr(rebuild_module, "identity", newer)
    assert [(v.state, v.detail) for v in numeric(machine, found)] == [
        ("skipped", "another toolchain: furiosa-torch 0.fake -> 1.fake")
    ]
    assert rebuild(machine, found)["ok-1"].state == "skipped"
    assert machine.compiled == ["ok-1"]


def test_a_rebuild_gives_the_same_bytes(machine: FakeMachine) -> None:
    found = entries(machine, "a", "b", "c")
    assert {name: v.state for name, v in rebuild(machine, found).items()} == dict.fromkeys("abc", "passed")
    assert sorted(machine.compiled) == ["a", "a", "b", "b", "c", "c"]


def test_other_bytes_fail(machine: FakeMachine) -> None:
    (entry,) = entries(machine, "a")
    forged = replace(entry, object=replace(entry.object, sha256="0" * 64))
    verdict = rebuild(machine, [forged])["a"]
    assert verdict.state == "failed"
    assert verdict.facts["rebuilt"] == entry.artifact_digest


def test_a_source_that_means_something_else_now_cannot_be_rebuilt(machine: FakeMachine) -> None:
    (entry,) = entries(machine, "a")
    other = replace(entry, facts=replace(entry.facts, graph=fake_graph("a", elements=99)))
    verdict = rebuild(machine, [other])["a"]
    assert verdict.state == "skipped"
    assert "another program" in verdict.detail


def test_a_compiler_that_cannot_be_loaded_is_an_error(machine: FakeMachine) -> None:
    found = entries(machine, "a", "b")
    with pytest.raises(ToolchainError, match="could not start"):
        rebuild(machine, found, with_variables(FAKE_CANNOT_START=1))


def test_fusions_are_asked_apart(machine: FakeMachine) -> None:
    four = machine.build([fake_graph("ok-4")], fusion=4).outcomes[0].entry
    eight = machine.build([fake_graph("ok-8")]).outcomes[0].entry
    assert four is not None
    assert eight is not None
    assert [v.state for v in numeric(machine, [eight, four])] == ["passed", "passed"]
    assert {name: v.state for name, v in rebuild(machine, [eight, four]).items()} == {
        "ok-4": "passed",
        "ok-8": "passed",
    }


@pytest.mark.parametrize("fusion", ["3", "many"])
def test_an_entry_of_no_fusion_of_the_vendors_is_skipped(machine: FakeMachine, fusion: str) -> None:
    (entry,) = entries(machine, "ok-1")
    odd = replace(entry, key=Key({**entry.key.parts, "fusion": fusion}))
    assert [(v.state, v.detail) for v in numeric(machine, [odd])] == [
        ("skipped", f"another toolchain: fusion {fusion} -> 1")
    ]
    assert rebuild(machine, [odd])["ok-1"].state == "skipped"
