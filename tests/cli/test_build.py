"""`graphcache build`: what it prints, its exit codes, manifests. The compiler is made up."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli.build
import cli.diff
import graphcache.manifest.diff
from cli.main import run
from cli.progress import LineProgress, LiveProgress
from graphcache.build.report import Running
from graphcache.catalog import CatalogOptions
from graphcache.costs import Expected
from graphcache.graph import Combined, Graph, Listing, Use, Way
from graphcache.key import Key
from graphcache.manifest.file import read_manifest, write_manifest
from graphcache.manifest.manifest import Compiled
from graphcache.manifest.text import ManifestError, ManifestFieldError
from graphcache.toolchain.visible import VisibleParts
from tests.compiler.vendor import model
from tests.store.processes import finish, start
from tests.support.fake_build import FakeMachine, fake_toolchain
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION, fake_program

Invoke = Callable[..., Any]
Look = Callable[[Path], dict[str, str]]
GRAPHS = [fake_graph("g1", elements=1), fake_graph("g2", elements=2)]


@pytest.fixture
def graphs() -> list[Graph]:
    """What the catalog lists; change it to list something else."""
    return list(GRAPHS)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: list[Graph]) -> FakeMachine:
    made = FakeMachine(tmp_path, monkeypatch)
    monkeypatch.setenv("GRAPHCACHE_DIR", str(made.store.root))
    monkeypatch.setattr(cli.build, "build_parts", fake_toolchain)
    monkeypatch.setattr(cli.build.catalog, "select", lambda only: list(only) or ["fake"])
    for module in (cli.build.catalog, graphcache.manifest.diff):
        monkeypatch.setattr(module, "list_graphs", lambda *_: listing(graphs))
    options = cli.build._build_options
    monkeypatch.setattr(cli.build, "_build_options", lambda given: replace(options(given), worker=made.worker))
    return made


def listing(graphs: list[Graph]) -> Listing:
    return Listing(tuple(graphs), tuple(Use(graph.name, "w.weight", 2, 1) for graph in graphs))


@pytest.fixture
def invoke(machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Invoke:
    checkpoint = model(tmp_path / "tiny", (4, 4))

    def command(*args: str, code: int = 0) -> Any:
        assert run(["build", "--shapes-from", str(checkpoint), "--jobs", "1", *args]) == code
        return capsys.readouterr()

    return command


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> Look:
    """`graphcache diff` of a manifest, which must find nothing to do: states by graph."""
    monkeypatch.setattr(cli.diff, "visible_parts", lambda memo: VisibleParts(fake_toolchain(), {}))

    def command(path: Path) -> dict[str, str]:
        assert run(["diff", "--manifest", str(path), "--json"]) == 0
        (compared,) = json.loads(capsys.readouterr().out)["manifests"]
        return {graph["graph"]: graph["state"] for graph in compared["graphs"]}

    return command


def test_plain_lines_say_what_happens(invoke: Invoke) -> None:
    lines = invoke().out.splitlines()
    assert lines[0] == "plan    2 graphs: 0 ready, 2 to compile; 1 worker"
    assert lines[1] == "start   g2"
    assert lines[2].startswith("done    g2  compiled in ")
    assert lines[2].endswith("  (1 of 2)")
    assert "failed     0" in lines
    assert "ready      2 of 2" in lines


def test_a_second_build_says_that_there_is_nothing_to_do(invoke: Invoke, machine: FakeMachine) -> None:
    invoke()
    machine.known = REVISION
    lines = invoke().out.splitlines()
    assert lines[0] == "plan    2 graphs: 2 ready"
    assert "compiled   0" in lines, "and no cost of nothing"
    assert not [line for line in lines if line.startswith(("start", "done"))]


def test_the_machine_form_is_one_object(invoke: Invoke) -> None:
    captured = invoke("--json")
    value = json.loads(captured.out)
    assert [(g["graph"], g["state"], g["trouble"]) for g in value["graphs"]] == [
        ("g1", "compiled", None),
        ("g2", "compiled", None),
    ]
    assert value["toolchain"]["compiler-revision"] == REVISION
    assert captured.err == ""


def test_a_failed_graph_gives_exit_code_1_and_its_log(
    invoke: Invoke, graphs: list[Graph], machine: FakeMachine, tmp_path: Path
) -> None:
    graphs.append(fake_graph("bad", elements=3, error="mystery operator\nwith details", print="compiler output"))
    manifest = tmp_path / "manifest.json"
    captured = invoke("--manifest", str(manifest), code=1)
    lines = captured.out.splitlines()
    assert "failed  bad  mystery operator  (1 of 3)" in lines
    assert "failed     1" in lines
    log = next(line.removeprefix("  log: ") for line in lines if line.startswith("  log: "))
    assert "compiler output" in Path(log).read_text()
    assert not manifest.exists(), "it would list a graph that was not compiled"
    assert "was not written" in captured.err


def test_tables_show_a_line_of_a_cause_and_the_summary_all_of_it(
    invoke: Invoke, graphs: list[Graph], machine: FakeMachine
) -> None:
    graphs.append(
        fake_graph("bad", elements=3, error=f"Not importable: mystery {'long ' * 40}end\ncaused by: \x1b[31mdetails")
    )
    lines = invoke(code=4).out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("failed  bad: "))
    assert lines[start].endswith("long end")
    assert lines[start + 1] == "  caused by: \\x1b[31mdetails"
    machine.known = REVISION
    row = next(line for line in invoke("--dry-run").out.splitlines() if line.startswith("failed"))
    assert row.startswith("failed  bad    failed before: Not importable: mystery long")
    assert row.endswith("…")
    (failure,) = machine.store.failures()
    assert failure.cause.endswith("details")


def test_a_manifest_is_written_and_stays_as_it_is(invoke: Invoke, machine: FakeMachine, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    invoke("--manifest", str(path))
    written = path.read_bytes()
    manifest = read_manifest(path)
    assert [(g.graph.name, g.status) for g in manifest.graphs] == [("g1", "compiled"), ("g2", "compiled")]
    assert manifest.model == "tiny"
    entries = {entry.graph.name: entry for entry in machine.store.entries()}
    for recorded in manifest.graphs:
        assert recorded.compiled is not None
        assert recorded.key == entries[recorded.graph.name].key
        assert recorded.compiled.artifact == entries[recorded.graph.name].artifact_digest
    invoke("--manifest", str(path))
    assert path.read_bytes() == written


def test_a_manifest_stands_for_its_checkpoint(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "manifest.json"
    invoke("--manifest", str(path))
    machine.known = REVISION
    assert run(["build", "--shapes-from", str(path)]) == 0
    assert "2 ready" in capsys.readouterr().out


def test_a_manifests_options_catalogs_and_fusion_stand_where_none_are_given(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "manifest.json", []
    invoke("--dry-run", "--manifest", str(path), *("--sequence", "128", "--fusion", "4", "--only", "a,b"))
    known = cli.build.build_parts
    monkeypatch.setattr(cli.build, "build_parts", lambda fusion, memo: asked.append(fusion) or known(fusion, memo))

    def list_graphs(names: list[str], _table: object, _config: object, options: CatalogOptions) -> Listing:
        asked.append((list(names), options))
        return listing(GRAPHS)

    monkeypatch.setattr(cli.build.catalog, "list_graphs", list_graphs)
    build = ["build", "--shapes-from", str(path), "--dry-run"]
    assert run(build) == 0
    assert asked == [(["a", "b"], CatalogOptions(sequence=128)), 4]
    asked.clear()
    assert run([*build, "--sequence", "64", "--tile-elements", "8", "--fusion", "2", "--only", "b"]) == 0
    assert asked == [(["b"], CatalogOptions(sequence=64, tile_elements=8)), 2]


def test_a_manifest_that_cannot_be_written_is_told_before_anything_is_compiled(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert "error[manifest-target]" in invoke("--manifest", str(config), code=2).err
    assert "error[manifest-target]" in invoke("--manifest", str(config / "below.json"), code=2).err
    assert config.read_text() == "{}"
    assert machine.compiled == []


def test_a_manifest_of_another_checkouts_sources_is_not_written(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path
) -> None:
    module = GRAPHS[0].function.partition(":")[0].replace(".", "/")
    other = tmp_path / "other" / f"{module}.py"
    other.parent.mkdir(parents=True)
    other.write_text("")
    (tmp_path / "other" / ".git").mkdir()
    manifest = tmp_path / "other" / "cache_manifests" / "tiny.json"
    assert "error[source-elsewhere]" in invoke("--manifest", str(manifest), code=2).err
    assert machine.compiled == []


def test_a_manifest_that_names_other_bytes_than_before_says_so(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path
) -> None:
    path = tmp_path / "manifest.json"
    invoke("--manifest", str(path))
    manifest = read_manifest(path)
    first = manifest.graphs[0]
    assert first.compiled is not None
    other = replace(first, compiled=replace(first.compiled, artifact="c" * 64))
    write_manifest(path, replace(manifest, graphs=(other, *manifest.graphs[1:])))
    machine.known = REVISION
    err = invoke("--manifest", str(path)).err
    assert "warning[other-bytes]: g1, key" in err
    assert "where the manifest names cccccccccccc" in err
    assert "other-bytes" not in invoke("--manifest", str(path)).err


def test_without_a_home_a_plan_is_made_all_the_same(
    invoke: Invoke, machine: FakeMachine, no_home: None, tmp_path: Path
) -> None:
    invoke("--dry-run")
    (tmp_path / "no store").mkdir()
    invoke("--dry-run", "--cache", str(tmp_path / "no store"))
    assert list((tmp_path / "no store").iterdir()) == []


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"graphcache-manifest-', '"graphcache-manifest-9'),
        ('"catalogs"', '"a field of another version"'),
        ('"catalogs"', '<<<<<<< ours\n"catalogs"'),
    ],
    ids=["another format", "another field", "a merge"],
)
def test_a_manifest_that_cannot_be_read_is_written_anew(
    invoke: Invoke, tmp_path: Path, old: str, new: str, dry: bool
) -> None:
    path = tmp_path / "manifest.json"
    invoke("--manifest", str(path))
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    assert "build --shapes-from CHECKPOINT --manifest FILE writes it anew" in caught.value.hint
    err = invoke("--manifest", str(path), *(["--dry-run"] if dry else [])).err
    assert "warning[manifest]: nothing is taken from what is there" in err
    assert [each.graph.name for each in read_manifest(path).graphs] == ["g1", "g2"]


@pytest.mark.parametrize("option", ["--timeout", "--memory"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "0", "-1"])
def test_limits_are_numbers_that_can_be(invoke: Invoke, option: str, value: str) -> None:
    assert "error[usage]" in invoke(option, value, code=2).err


def test_last_time_is_shown_from_the_manifest_when_the_cache_is_new(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    invoke("--manifest", str(path))
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "another"))
    lines = invoke("--manifest", str(path)).out.splitlines()
    assert "one after another" in lines[0]
    assert [line for line in lines if line.startswith("start") and "last time" in line]


def test_a_dry_run_compiles_nothing(invoke: Invoke, machine: FakeMachine) -> None:
    out = invoke("--dry-run").out
    assert "unknown  g1" in out
    assert machine.compiled == []
    assert not machine.store.root.exists()
    value = json.loads(invoke("--dry-run", "--json").out)
    assert {item["state"] for item in value["graphs"]} == {"unknown"}
    invoke()
    machine.known = REVISION
    value = json.loads(invoke("--dry-run", "--json").out)
    assert {item["state"] for item in value["graphs"]} == {"ready"}


def test_a_dry_run_writes_a_manifest_of_the_plan(
    invoke: Invoke, graphs: list[Graph], machine: FakeMachine, tmp_path: Path, look: Look
) -> None:
    path, bad = tmp_path / "manifest.json", fake_graph("bad", elements=3, error="no")
    graphs[:] = [GRAPHS[0], bad]
    invoke(code=1)
    machine.known = REVISION
    graphs[:] = [*GRAPHS, bad]
    lines = invoke("--dry-run", "--manifest", str(path)).out.splitlines()
    assert lines[-1] == f"manifest  {path}: 1 compiled, 2 planned"
    ready, unknown, refused = read_manifest(path).graphs
    (entry,) = machine.store.entries()
    assert (ready.status, ready.key, ready.compiled) == ("compiled", entry.key, Compiled.of(entry))
    assert (unknown.status, unknown.program, unknown.key) == ("planned", None, None)
    assert (refused.status, refused.key) == ("planned", machine.store.failures()[0].key)
    assert look(path) == {"g1": "unchanged", "g2": "planned", "bad": "planned"}
    value = json.loads(invoke("--dry-run", "--manifest", str(path), "--json").out)
    assert value["manifest"] == str(path)
    assert sorted(machine.compiled) == ["bad", "g1"], "nothing was compiled by a dry run"


def test_a_planned_manifest_is_built_from(
    invoke: Invoke, machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str], look: Look
) -> None:
    path = tmp_path / "manifest.json"
    invoke("--dry-run", "--manifest", str(path))
    assert look(path) == {"g1": "planned", "g2": "planned"}
    assert run(["build", "--shapes-from", str(path), "--jobs", "1"]) == 0
    assert sorted(machine.compiled) == ["g1", "g2"]
    capsys.readouterr()
    machine.known = REVISION
    assert run(["build", "--shapes-from", str(path), "--dry-run", "--manifest", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 compiled, 0 planned")
    assert look(path) == {"g1": "unchanged", "g2": "unchanged"}
    invoke("--manifest", str(tmp_path / "built.json"))
    assert (tmp_path / "built.json").read_bytes() == path.read_bytes(), "as a build writes it"


def test_limits_reach_the_workers(invoke: Invoke, graphs: list[Graph]) -> None:
    graphs[:] = [fake_graph("slow", secs=60)]
    out = invoke("--timeout", "0.3", code=1).out
    assert "not done after 0.3 s, the limit (--timeout)" in out
    assert "worth another try" in out
    graphs[:] = [fake_graph("big", elements=5, eat_bytes=400_000_000, secs=60)]
    assert "the limit is 200 MB (--memory)" in invoke("--memory", "0.2", code=1).out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_build_with_its_exit_code(
    machine: FakeMachine, graphs: list[Graph], tmp_path: Path, number: int, code: int
) -> None:
    graphs.append(fake_graph("slow", elements=1, secs=60, number=1))
    checkpoint = model(tmp_path / "tiny", (4, 4))
    child = start(lambda: os._exit(run(["build", "--shapes-from", str(checkpoint), "--jobs", "1", "--json"])))
    while "slow" not in machine.compiled:
        time.sleep(0.01)
    os.kill(child, number)
    assert finish(child) == code
    assert sorted(entry.graph.name for entry in machine.store.entries()) == ["g1", "g2"]


def test_an_odd_fusion_is_refused(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphcache.build import build as build_module
    from graphcache.toolchain.base import build_parts

    monkeypatch.setattr(build_module, "build_parts", build_parts)
    assert "fusion 3 is not one of" in invoke("--fusion", "3", code=2).err


def test_a_terminal_shows_what_runs_against_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    live = LiveProgress()
    expected = {"g1": Expected(10.0, "recorded"), "g2": Expected(4.0, "recorded")}
    live._expected, live._total, live._done, live._workers = expected, 3, 1, 1
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    console.print(live._picture([Running(GRAPHS[0], 3.0, expected["g1"])], [GRAPHS[1]]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "g1" in shown
    assert "3.0 s  (last time 10 s)" in shown
    assert "1 of 3" in shown
    assert "about 11 s left" in shown


def test_what_has_no_record_is_not_promised_a_time() -> None:
    live = LiveProgress()
    assert live._left_text([Running(GRAPHS[0], 3.0, None)], [GRAPHS[1]]) == "1 waiting"


def test_no_graph_for_a_model_is_an_error(machine: FakeMachine, invoke: Invoke, graphs: list[Graph]) -> None:
    graphs.clear()
    assert "list no graph for these tensors" in invoke(code=2).err
    assert "list no graph for these tensors" in invoke("--dry-run", code=2).err


def test_a_source_that_is_edited_meanwhile_gets_no_manifest(
    machine: FakeMachine,
    invoke: Invoke,
    graphs: list[Graph],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, manifest = tmp_path / "edited_graphs.py", tmp_path / "m.json"
    source.write_text("def step(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    graphs[:] = [fake_graph("g", function="edited_graphs:step")]

    def edit(*_: object) -> None:
        source.write_text("def step(x):\n    return x * 2\n")

    monkeypatch.setattr(LineProgress, "planned", edit)
    assert "source was changed" in invoke("--manifest", str(manifest), code=1).out
    assert not manifest.exists()


def test_a_graph_that_another_process_compiles_is_said(
    machine: FakeMachine, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.store.claim(Key.of(fake_program(GRAPHS[0]), fake_toolchain())):
        printed = invoke("--timeout", "3").out
    assert "wait    g1  another process is compiling it" in printed
    assert len(list(machine.store.entries())) == 2


def test_a_trace_is_written(invoke: Invoke, tmp_path: Path) -> None:
    invoke("--trace", str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted(e["name"] for e in events if e["ph"] == "X") == ["g1", "g2"]


def test_a_trace_that_cannot_be_written_is_refused_before_the_build(invoke: Invoke, tmp_path: Path) -> None:
    said = invoke("--trace", str(tmp_path / "none" / "trace.json"), code=2)
    assert "choose another file" in said.err
    assert "start" not in said.out


# --- ways -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(graphs: list[Graph]) -> Graph:
    """A graph that the compiler refuses, which two calls of another serve."""
    tile = fake_graph("tile", elements=3)
    join = fake_graph("join", elements=7)
    graph = fake_graph("whole", elements=6, error="while lowering TacticKernel")
    graph = replace(graph, ways=(Way(tile, 2, (Combined("join", join),)),))
    graphs[:] = [graph]
    return graph


def test_a_graph_that_is_made_another_way_is_no_failure_and_says_so(refused: Graph, invoke: Invoke) -> None:
    printed = invoke().out
    assert "refused whole  while lowering TacticKernel; next is 2 calls of tile" in printed
    assert [line.endswith(", as 2 calls of tile  (1 of 1)") for line in printed.splitlines()].count(True) == 1
    assert "ready      2 of 2" in printed
    line = invoke("--dry-run").out.splitlines()[1]
    assert line.split(None, 2) == [
        "ready",
        "whole",
        "as 2 calls of tile; whole is refused: while lowering TacticKernel",
    ]


def test_a_manifest_keeps_the_way_and_what_was_refused(refused: Graph, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    invoke("--manifest", str(path))
    manifest = read_manifest(path)
    whole, join = manifest.graphs
    assert whole.graph.name == refused.name
    assert whole.way is not None
    assert (whole.way.graph.name, whole.way.calls) == ("tile", 2)
    assert [(each.graph, each.cause) for each in whole.refused] == [("whole", "while lowering TacticKernel")]
    assert whole.key == Key.of(fake_program(refused.ways[0].graph), fake_toolchain(), {})
    assert (join.graph.name, join.way, join.refused) == ("join", None, ())
    before = path.read_bytes()
    invoke("--manifest", str(path))
    assert path.read_bytes() == before


def test_diff_compares_with_the_way_of_the_manifest(
    refused: Graph,
    graphs: list[Graph],
    invoke: Invoke,
    look: Look,
    machine: FakeMachine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "m.json"
    invoke("--manifest", str(path))
    assert look(path) == {"whole": "unchanged", "join": "unchanged"}
    # Whatever else the store gets: the manifest is compared with what it says.
    machine.build([fake_graph("whole", elements=6)])
    assert look(path) == {"whole": "unchanged", "join": "unchanged"}
    shutil.rmtree(machine.store.root / "entries")
    assert run(["diff", "--manifest", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "no artifact of this program; as 2 calls of tile; whole is refused: while lowering TacticKernel" in printed
    # A catalog that lists the way no more asks for the graph itself.
    graphs[:] = [replace(refused, ways=())]
    assert run(["diff", "--manifest", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "whole" in line or "join" in line] == [
        ["stale", "whole"],
        ["removed", "join"],
    ]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda way: way["results"][0].update(how="guess"), "combined by 'guess'"),
        (lambda way: way.update(calls=-1), "way.calls is -1, not a count"),
        (lambda way: way.pop("graph"), "way lacks 'graph'"),
        (lambda way: way["graph"].update(settings={"tactic": "io-bound"}), "a key that is not the digest"),
    ],
)
def test_a_damaged_way_is_named(
    refused: Graph, invoke: Invoke, tmp_path: Path, damage: Callable[[dict[str, Any]], Any], says: str
) -> None:
    path = tmp_path / "m.json"
    invoke("--manifest", str(path))
    value = json.loads(path.read_text())
    damage(value["graphs"][0]["way"])
    path.write_text(json.dumps(value))
    with pytest.raises(ManifestFieldError, match=re.escape(says)):
        read_manifest(path)
