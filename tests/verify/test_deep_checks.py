"""`verify --rebuild`, with made-up processes: which entries are compiled again, and what their answers mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.errors import ToolchainError
from graphcache.key import Key
from graphcache.local.memo import memo_of
from graphcache.store.base import Entry
from graphcache.verify import rebuild as rebuild_module
from graphcache.verify.rebuild import rebuilds
from graphcache.verify.verdict import Verdict
from tests.support.fake_build import OPTIONS, FakeMachine, fake_toolchain
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import with_variables


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(rebuild_module, "build_parts", fake_toolchain)
    return FakeMachine(tmp_path, monkeypatch)


def entries(machine: FakeMachine, *names: str) -> list[Entry]:
    report = machine.build([fake_graph(name, elements=i + 1) for i, name in enumerate(names)])
    return [outcome.entry for outcome in report.outcomes if outcome.entry]


def rebuild(machine: FakeMachine, found: list[Entry], worker: tuple[str, ...] = ()) -> dict[str, Verdict]:
    with memo_of(machine.store.root) as memo:
        options = replace(OPTIONS, worker=worker or machine.worker)
        return {verdict.entry.graph.name: verdict for verdict in rebuilds(found, memo, options)}


def test_entries_of_another_compiler_are_skipped(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = entries(machine, "ok-1")

    def newer(fusion: int, memo: object, revision: str | None = None) -> dict[str, str]:
        return {**fake_toolchain(fusion), "furiosa-torch": "1.fake"}

    monkeypatch.setattr(rebuild_module, "build_parts", newer)
    verdict = rebuild(machine, found)["ok-1"]
    assert (verdict.state, verdict.detail) == ("skipped", "another toolchain: furiosa-torch 0.fake -> 1.fake")
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
    assert {name: v.state for name, v in rebuild(machine, [eight, four]).items()} == {
        "ok-4": "passed",
        "ok-8": "passed",
    }


@pytest.mark.parametrize("fusion", ["3", "many"])
def test_an_entry_of_no_fusion_of_the_vendors_is_skipped(machine: FakeMachine, fusion: str) -> None:
    (entry,) = entries(machine, "ok-1")
    odd = replace(entry, key=Key({**entry.key.parts, "fusion": fusion}))
    verdict = rebuild(machine, [odd])["ok-1"]
    assert (verdict.state, verdict.detail) == ("skipped", f"another toolchain: fusion {fusion} -> 1")
