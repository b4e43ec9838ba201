"""What a build leaves behind, whatever happens while it runs. The compiler is made up; the rest is real."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from graphcache.build import build as build_module
from graphcache.build import scheduler as building
from graphcache.build.build import BuildOptions
from graphcache.build.report import Silent
from graphcache.costs import Costs
from graphcache.errors import StoreError, ToolchainError, UsageError
from graphcache.graph import Graph
from graphcache.key import Key
from graphcache.runtime import versions
from graphcache.store.base import Cost
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.toolchain import base
from graphcache.vendor import layouts as vendor
from graphcache.verify.integrity import verify
from tests.build.test_pool import running
from tests.store.processes import finish, kill, start
from tests.support.fake_build import FakeMachine, fake_toolchain, states
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION, fake_program, with_variables
from tests.support.vendor_texts import NO_CC, NO_HEADERS

GRAPHS = [fake_graph(f"g{i}", elements=i + 1) for i in range(4)]
NO_WORKER = (sys.executable, "-c", "raise SystemExit('a worker was started')")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def test_an_empty_cache_is_filled(machine: FakeMachine) -> None:
    report = machine.build(GRAPHS)
    assert states(report) == {f"g{i}": "compiled" for i in range(4)}
    assert sorted(machine.compiled) == ["g0", "g1", "g2", "g3"]
    assert [o.graph.name for o in report.outcomes] == ["g0", "g1", "g2", "g3"], "in the order given"
    for outcome in report.outcomes:
        assert outcome.entry is not None
        artifact = machine.store.open(outcome.entry, sha256=True)
        assert bytes(artifact.runnable).startswith(b"runnable ")
        assert [a.shape for a in artifact.args] == [a.shape for a in outcome.graph.args]
        assert outcome.entry.facts.estimate_ns == 1000 + outcome.graph.args[0].elements
        assert outcome.entry.cost.peak_rss_bytes > 1 << 20
    assert verify(machine.store).sound


def test_a_second_build_starts_no_process(machine: FakeMachine) -> None:
    machine.known = REVISION
    machine.build(GRAPHS)
    report = machine.build(GRAPHS, worker=NO_WORKER)
    assert states(report) == {f"g{i}": "ready" for i in range(4)}
    assert len(machine.compiled) == 4


def test_a_failed_graph_stops_no_other(machine: FakeMachine) -> None:
    bad = fake_graph("bad", error="Not importable for all cases, mystery", print="compiler says: mystery")
    crash = fake_graph("crash", elements=7, signal="SEGV")
    report = machine.build([bad, GRAPHS[0], crash, GRAPHS[1]])
    assert states(report) == {"bad": "failed", "g0": "compiled", "crash": "failed", "g1": "compiled"}
    assert [o.graph.name for o in report.failed] == ["bad", "crash"]
    refused = report.failed[0].trouble
    assert refused is not None
    assert refused.cause == "Not importable for all cases, mystery"
    log = (machine.store.root / refused.log).read_text()
    assert "compiler says: mystery" in log
    assert {f.graph: f.retryable for f in machine.store.failures()} == {"bad": False, "crash": True}


def test_what_the_compiler_refuses_is_not_tried_again_until_asked(machine: FakeMachine) -> None:
    machine.known = REVISION
    bad = fake_graph("bad", error="Not importable")
    machine.build([bad])
    again = machine.build([bad], worker=NO_WORKER)
    assert states(again) == {"bad": "failed"}
    assert again.failed[0].item.reason == "failed before: Not importable"
    assert machine.compiled == ["bad"]
    machine.build([bad], retry=True)
    assert machine.compiled == ["bad", "bad"]


@pytest.mark.parametrize("fault", [{"half": True}, {"error": NO_HEADERS}, {"error": NO_CC}])
def test_what_the_machine_caused_is_tried_again(machine: FakeMachine, fault: dict[str, object]) -> None:
    graph = fake_graph("g", **fault)
    assert states(machine.build([graph])) == {"g": "failed"}
    assert states(machine.build([graph])) == {"g": "failed"}
    assert machine.compiled == ["g", "g"]


def test_a_graph_that_cannot_be_exported_is_an_outcome(machine: FakeMachine) -> None:
    report = machine.build([fake_graph("g", export_error="data-dependent branch"), GRAPHS[0]])
    assert states(report) == {"g": "failed", "g0": "compiled"}
    trouble = report.failed[0].trouble
    assert trouble is not None
    assert "data-dependent branch" in trouble.cause
    assert "data-dependent branch" in (machine.store.root / trouble.log).read_text()


def test_a_graph_that_changes_its_process_fails_no_other(machine: FakeMachine) -> None:
    bad = [fake_graph(f"bad{i}", elements=64 - i, spoils="changes torch's default dtype") for i in range(2)]
    report = machine.build([*bad, *GRAPHS], jobs=1)
    assert states(report) == {"bad0": "failed", "bad1": "failed", **{f"g{i}": "compiled" for i in range(4)}}
    assert {o.trouble and (o.trouble.cause, o.trouble.retryable) for o in report.failed} == {
        ("changes torch's default dtype", False)
    }


def test_a_commit_ends_the_failure(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fake_graph("g", secs=30)
    assert states(machine.build([graph], timeout_secs=0.3)) == {"g": "failed"}
    assert len(machine.store.failures()) == 1
    # The same program, from a graph that is quick: constants of the fake are not part of its program here.
    quick = fake_graph("g", program="p", secs=0)
    slow = fake_graph("g", program="p", secs=30)
    machine.build([slow], timeout_secs=0.3)
    assert states(machine.build([quick])) == {"g": "compiled"}
    assert [f.graph for f in machine.store.failures()] == ["g"], "only that of the other program is left"


def test_two_sources_of_one_program_are_compiled_once(machine: FakeMachine) -> None:
    first, second = fake_graph("a", program="p"), fake_graph("b", program="p", note="another source")
    report = machine.build([first, second])
    assert sorted(states(report).values()) == ["compiled", "same program"]
    assert len(machine.compiled) == 1
    third = fake_graph("c", program="p", note="a third")
    assert states(machine.build([third])) == {"c": "same program"}
    assert len(machine.compiled) == 1


def test_a_program_that_was_found_out_is_remembered(machine: FakeMachine) -> None:
    machine.known = REVISION
    machine.build([fake_graph("a", program="p")])
    machine.build([fake_graph("b", program="p", note="another source")])
    report = machine.build([fake_graph("b", program="p", note="another source")], worker=NO_WORKER)
    assert states(report) == {"b": "ready"}


def test_settings_are_part_of_the_key(machine: FakeMachine) -> None:
    hinted = Graph("h", "fake", GRAPHS[0].function, GRAPHS[0].args, constants={}, settings={"tactic": "io-bound"})
    report = machine.build([GRAPHS[0], hinted])
    assert states(report) == {"g0": "compiled", "h": "compiled"}
    first, second = (o.entry for o in report.outcomes)
    assert first is not None
    assert second is not None
    assert first.program == second.program
    assert first.key != second.key
    assert first.artifact_digest != second.artifact_digest


def test_an_unknown_setting_is_refused_before_anything_starts(machine: FakeMachine) -> None:
    odd = Graph("h", "fake", GRAPHS[0].function, GRAPHS[0].args, constants={}, settings={"tactic": "fastest"})
    with pytest.raises(UsageError, match="tactic='fastest'"):
        machine.build([odd], worker=NO_WORKER)


def test_a_damaged_object_is_compiled_again(machine: FakeMachine) -> None:
    report = machine.build(GRAPHS[:2])
    entry = report.outcomes[0].entry
    assert entry is not None
    path = machine.store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = machine.build(GRAPHS[:2])
    assert states(again) == {"g0": "compiled", "g1": "ready"}
    assert machine.store.faults[0].quarantined is not None
    repaired = again.outcomes[0].entry
    assert repaired is not None
    assert repaired.artifact_digest == entry.artifact_digest, "the same bytes again"


def test_the_longest_is_started_first(machine: FakeMachine) -> None:
    costs = Costs()
    for name, secs in (("g0", 1.0), ("g1", 9.0), ("g2", 4.0), ("g3", 6.0)):
        costs.add(GRAPHS[int(name[1])], Cost(secs, secs, 1))
    machine.build(GRAPHS, costs=costs, jobs=1)
    assert machine.compiled == ["g1", "g3", "g2", "g0"]


def test_without_records_the_largest_is_started_first(machine: FakeMachine) -> None:
    machine.build(GRAPHS, jobs=1)
    assert machine.compiled == ["g3", "g2", "g1", "g0"]


def test_a_worker_of_another_compiler_never_compiles(machine: FakeMachine) -> None:
    machine.known = "of-last-week"
    with pytest.raises(ToolchainError, match="fake-revision, not of-last-week"):
        machine.build(GRAPHS)
    assert machine.compiled == []


def test_workers_that_cannot_start_end_the_build(machine: FakeMachine) -> None:
    with pytest.raises(ToolchainError, match=r"could not start.*librenegade\.so") as error:
        machine.build(GRAPHS, worker=with_variables(FAKE_CANNOT_START=1))
    assert error.value.hint == "graphcache doctor"


def test_what_a_machine_lacks_is_said_before_anything_starts(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_parts(*_: object) -> None:
        raise ToolchainError("aarch64-linux-gnu-gcc is not on PATH", hint="apt-get install gcc-aarch64-linux-gnu")

    monkeypatch.setattr(build_module, "build_parts", build_parts)
    with pytest.raises(ToolchainError, match="not on PATH"):
        machine.build(GRAPHS, worker=NO_WORKER)


def test_without_the_vendor_it_is_said_what_to_install(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install .`: the packages' metadata is asked, and the vendor's is not there."""
    monkeypatch.setattr(build_module, "build_parts", base.build_parts)
    monkeypatch.setattr(build_module, "known_revision", versions.known_revision)
    monkeypatch.setattr(vendor, "DISTRIBUTION", "no-such-vendor")
    vendor.layout.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="no-such-vendor is not installed") as error:
            machine.build(GRAPHS, worker=NO_WORKER)
    finally:
        vendor.layout.cache_clear()
    assert "pip install" in error.value.hint


def test_a_store_that_cannot_be_written_is_an_error(machine: FakeMachine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError):
        machine.build(GRAPHS, store=LocalStore(tmp_path / "file"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of `edited_package.graphs`."""
    folder = tmp_path / "edited_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "graphs.py"


@pytest.mark.parametrize("edit", ["def step(x):\n    return x * 2\n", "def step(x:\n"])
def test_a_source_that_is_edited_meanwhile_is_a_failure_that_nothing_keeps(
    machine: FakeMachine, package: Path, edit: str
) -> None:
    package.write_text("def step(x):\n    return x\n")
    graph = fake_graph("g", function="edited_package.graphs:step")

    class Edits(Silent):
        def planned(self, *_: object) -> None:
            package.write_text(edit)

    report = machine.build([graph, GRAPHS[0]], listener=Edits())
    assert states(report) == {"g": "failed", "g0": "compiled"}
    trouble = report.outcomes[0].trouble
    assert trouble is not None
    assert machine.compiled == ["g0"]
    programs = Programs(machine.store.root)
    assert programs.known(report.outcomes[0].item.source.digest, graph, fake_toolchain()["torch"]) is None
    assert machine.store.failures() == []
    assert edit.startswith("def step(x:\n") or ("source was changed" in trouble.cause and trouble.retryable)


@pytest.mark.parametrize(
    "text",
    [
        "def make(k):\n    return lambda x: x * k\n\n\ndouble, triple = make(2), make(3)\n",
        "if True:\n    def double(x):\n        return x * 2\n    def triple(x):\n        return x * 3\n",
        "try:\n    def double(x):\n        return x * 2\n    def triple(x):\n        return x * 3\nfinally: ...\n",
    ],
)
def test_two_graphs_of_one_statement_keep_their_own_programs(machine: FakeMachine, package: Path, text: str) -> None:
    package.write_text(text)
    graphs = [fake_graph(name, function=f"edited_package.graphs:{name}") for name in ("double", "triple")]
    first, again = machine.build(graphs), machine.build(graphs)
    assert states(again) == {"double": "ready", "triple": "ready"}
    keys = [[outcome.entry and outcome.entry.key for outcome in report.outcomes] for report in (first, again)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


def test_a_ready_graphs_program_is_kept_whoever_told_it(machine: FakeMachine) -> None:
    report = machine.build([GRAPHS[0]])
    item = report.outcomes[0].item
    told, torch = Programs(None), fake_toolchain()["torch"]
    assert item.program is not None
    told.remember(item.source.digest, item.graph, torch, item.program)
    shutil.rmtree(machine.store.root / "programs")
    # As a manifest tells it: known, and not in the cache.
    kept = Programs(machine.store.root)
    kept._known.update(told._known)
    machine.known = REVISION
    assert states(machine.build([GRAPHS[0]], programs=kept, worker=NO_WORKER)) == {"g0": "ready"}
    assert Programs(machine.store.root).known(item.source.digest, item.graph, torch) == item.program


def test_nothing_to_build_starts_nothing(machine: FakeMachine) -> None:
    assert machine.build([], worker=NO_WORKER).outcomes == ()


def test_a_graph_that_a_stopped_builder_holds_is_said_and_compiled_in_the_end(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    monkeypatch.setattr(building, "PATIENT_SECS", 0.0)
    costs = Costs()
    costs.add(GRAPHS[0], Cost(1.0, 1.0, 1))
    told: list[str] = []

    class Notes(Silent):
        def elsewhere(self, graph: Graph) -> None:
            told.append(graph.name)

    with machine.store.claim(Key.of(fake_program(GRAPHS[0]), fake_toolchain())) as free:
        assert free
        report = machine.build(GRAPHS[:2], costs=costs, listener=Notes())
    assert states(report) == {"g0": "compiled", "g1": "compiled"}
    assert told == ["g0"]


def test_a_graph_that_this_build_compiles_itself_is_no_other_processes(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "PATIENCE", 0.0)
    monkeypatch.setattr(building, "PATIENT_SECS", 0.0)
    monkeypatch.setattr(LocalStore, "poll_secs", 0.0)
    twins = [fake_graph(name, program="p", note=name, secs=0.5) for name in ("a", "b")]
    costs = Costs()
    for graph in twins:
        costs.add(graph, Cost(1.0, 1.0, 1))
    told: list[Graph] = []

    class Notes(Silent):
        def elsewhere(self, graph: Graph) -> None:
            told.append(graph)

    machine.build(twins, costs=costs, listener=Notes())
    assert len(machine.compiled) == 1
    assert told == []


def test_a_store_that_takes_no_objects_is_found_before_anything_is_compiled(machine: FakeMachine) -> None:
    machine.store.root.mkdir()
    (machine.store.root / "objects").write_text("a file in the place of a folder")
    with pytest.raises(StoreError, match="objects"):
        machine.build(GRAPHS)
    assert machine.compiled == []


def test_memory_is_shared_by_the_workers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "available_memory_bytes", lambda: 1 << 36)
    assert BuildOptions(jobs=64).limits(2) == BuildOptions(jobs=2).limits(64)
    assert BuildOptions(jobs=64, memory_bytes=5).limits(2).memory_bytes == 5


def test_a_limit_that_stops_every_worker_is_said_to_be_the_reason(machine: FakeMachine) -> None:
    with pytest.raises(ToolchainError, match="the limit is") as error:
        machine.build(GRAPHS, memory_bytes=1)
    assert "--memory" in error.value.hint


def test_a_killed_build_keeps_what_it_committed_and_the_next_goes_on(machine: FakeMachine) -> None:
    quick = [fake_graph(f"q{i}", elements=100 + i) for i in range(3)]
    slow = fake_graph("slow", elements=1, secs=60)
    child = start(lambda: machine.build([*quick, slow], jobs=1) and None)
    while "slow" not in machine.compiled:
        time.sleep(0.01)
    kill(child)
    assert sorted(e.graph.name for e in machine.store.entries()) == ["q0", "q1", "q2"]
    assert verify(machine.store).sound
    started = len(machine.compiled)
    done = machine.build([*quick, fake_graph("slow", elements=1, secs=0)])
    assert states(done) == {"q0": "ready", "q1": "ready", "q2": "ready", "slow": "compiled"}
    assert machine.compiled[started:] == ["slow"]


def test_an_interrupted_build_leaves_no_process_and_no_scratch(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pids: list[int] = []

    class Interrupts(Silent):
        def tick(self, *_: object) -> None:
            if machine.compiled:
                pids.extend(int(p) for p in os.listdir("/proc") if p.isdigit() and is_fake_worker(int(p)))
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.build([fake_graph("slow", secs=60)], listener=Interrupts())
    assert pids
    assert not any(running(pid) for pid in pids)
    assert list(tmp_path.glob("graphcache-build-*")) == []


def is_fake_worker(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        mine = f"\nPPid:\t{os.getpid()}\n" in status
        return mine and b"fake_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def build_in_processes(machine: FakeMachine, count: int) -> None:
    graphs = [fake_graph(f"g{i}", elements=i + 1, secs=0.2) for i in range(6)]
    children = [start(lambda: machine.build(graphs) and None) for _ in range(count)]
    assert [finish(child) for child in children] == [0] * count
    entries = list(machine.store.entries())
    assert sorted(e.graph.name for e in entries) == [g.name for g in graphs]
    report = verify(machine.store)
    assert report.sound
    assert report.orphans == ()


def test_builds_of_one_cache_share_the_work(machine: FakeMachine) -> None:
    build_in_processes(machine, 3)
    assert sorted(machine.compiled) == [f"g{i}" for i in range(6)], "each was compiled once"


@pytest.mark.stress
def test_eight_builds_are_right_when_every_lock_does_nothing(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcache.store.lock.fcntl.flock", lambda *_: None)
    build_in_processes(machine, 8)


@pytest.mark.stress
def test_eight_builds_of_one_cache(machine: FakeMachine) -> None:
    build_in_processes(machine, 8)
