"""Settings that are chosen by content: in the key, told by the worker, and known to who cannot export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, Listing
from graphcache.lookup import look_up
from graphcache.manifest.file import read_manifest, write_manifest
from graphcache.manifest.manifest import Compiled, Manifest, known_programs
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.programs import Programs
from graphcache.verify.integrity import verify
from tests.support.fake_build import FakeMachine, fake_toolchain, states
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION

CHOSEN = {"tactic": "compute-bound"}
GRAPH = fake_graph("free", recommended=CHOSEN)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def test_what_is_chosen_is_in_the_key_and_in_the_entry(machine: FakeMachine) -> None:
    (outcome,) = machine.build([GRAPH]).outcomes
    assert outcome.entry is not None
    assert outcome.entry.key.parts["settings.tactic"] == "compute-bound"
    assert outcome.entry.graph == replace(GRAPH, settings=CHOSEN, by_content=True)
    assert verify(machine.store).sound


def test_it_is_the_key_of_a_graph_that_asks_for_the_same(machine: FakeMachine) -> None:
    machine.build([GRAPH])
    report = machine.build([replace(GRAPH, settings=CHOSEN)])
    assert states(report) == {"free": "same program"}
    assert machine.compiled == ["free"]
    assert states(machine.build([replace(GRAPH, settings={})])) == {"free": "compiled"}


def test_a_reader_that_cannot_export_finds_it(machine: FakeMachine) -> None:
    machine.build([GRAPH])
    (item,) = look_up([GRAPH], store=machine.store, toolchain=fake_toolchain())
    assert (item.state, item.graph.settings) == ("ready", CHOSEN)
    machine.known = REVISION
    assert states(machine.build([GRAPH], worker=("false",))) == {"free": "ready"}, "no worker is started"


def test_another_way_of_choosing_asks_again(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build([GRAPH])
    monkeypatch.setattr("graphcache.store.programs.SETTINGS_FORMAT", "graphcache-settings-99")
    (item,) = look_up([GRAPH], store=machine.store, toolchain=fake_toolchain())
    assert (item.state, item.graph.settings) == ("unknown", None)
    # A graph with settings of its own does not ask.
    own = replace(GRAPH, settings=CHOSEN)
    machine.build([own])
    assert look_up([own], store=machine.store, toolchain=fake_toolchain())[0].state == "ready"


def test_a_record_without_its_settings_is_none(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcache.store.programs._record", lambda asked, answer: {**asked, "program": answer.program})
    machine.build([GRAPH])
    assert look_up([GRAPH], store=machine.store, toolchain=fake_toolchain())[0].state == "unknown"
    assert not verify(machine.store).sound


@pytest.mark.parametrize("settings", [None, {}, CHOSEN])
def test_a_graph_is_the_same_after_json(settings: dict[str, str] | None) -> None:
    for graph in (replace(GRAPH, settings=settings), GRAPH.with_recommended(CHOSEN)):
        assert Graph.from_json(graph.as_json()) == graph
        assert graph.with_recommended({"tactic": "io-bound"}).settings == (
            {"tactic": "io-bound"} if graph.settings is None else graph.settings
        )
    assert GRAPH.with_recommended(CHOSEN).without_recommended() == GRAPH


def test_a_manifest_tells_what_was_chosen(machine: FakeMachine, tmp_path: Path) -> None:
    (outcome,) = machine.build([GRAPH]).outcomes
    assert outcome.entry is not None
    source = SourceHashes(WorkTree()).of(GRAPH.function)
    made = Manifest.of(
        "demo",
        config=None,
        groups=(),
        catalogs=["demo"],
        options=CatalogOptions(),
        toolchain=fake_toolchain(),
        listing=Listing((outcome.graph,), ()),
        sources={"free": source},
        programs={"free": outcome.entry.program},
        compiled={"free": Compiled.of(outcome.entry)},
    )
    write_manifest(tmp_path / "manifest.json", made)
    read = read_manifest(tmp_path / "manifest.json")
    assert read == made
    programs = Programs(None, known_programs([read]))
    assert programs.settled(source.digest, GRAPH, "0.fake") == GRAPH.with_recommended(CHOSEN)
    own = replace(GRAPH, settings={})
    assert programs.known(source.digest, own, "0.fake") is None, "that graph has settings of its own"
