"""Plans, remembered programs, expected costs, and the trainer's look-up."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from itertools import permutations
from pathlib import Path

import pytest

from graphcache.catalog import CatalogOptions
from graphcache.costs import FLAT_ELEMENTS, Costs
from graphcache.errors import MissingGraphsError
from graphcache.graph import Graph, Listing, TensorSpec
from graphcache.key import PROGRAM_FORMAT, Key
from graphcache.lookup import entries, look_up
from graphcache.manifest.file import read_manifest
from graphcache.manifest.manifest import Compiled, Manifest, known_programs
from graphcache.plan import cause_line, plan
from graphcache.source.hash import SourceHash, SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Cost, Facts
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_failure
from tests.support.fake_tree import FakeTree

FILES = {"pkg/graphs.py": "def step(x):\n    return x\n"}
SETTINGS = {"tactic": "compute-bound"}
CHOSEN = {**TOOLCHAIN, "fusion": "8"}
COST = Cost(2.0, 1.5, 1 << 30)


def graph(size: int = 8, **changed) -> Graph:
    made = Graph(
        f"step[{size}]",
        "demo",
        "pkg.graphs:step",
        (TensorSpec("x", "float32", (size,)),),
        constants={},
        settings=SETTINGS,
    )
    return dataclasses.replace(made, **changed)


def program_of(graph: Graph) -> str:
    return hashlib.sha256(graph.name.encode()).hexdigest()


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "cache")


def sources() -> SourceHashes:
    return SourceHashes(FakeTree(FILES))


def remember(store: LocalStore, *graphs: Graph, torch: str = "2.10.0") -> None:
    for each in graphs:
        Programs(store.root).remember(sources().of(each.function).digest, each, torch, program_of(each))


def commit(store: LocalStore, graph: Graph, **toolchain: str):
    key = Key.of(program_of(graph), {**CHOSEN, **toolchain}, graph.settings)
    return store.commit(key, fake_artifact(key), Facts(graph, COST))


def planned(store: LocalStore, *graphs: Graph, programs: Programs | None = None, **toolchain: str):
    return plan(
        graphs,
        sources=sources(),
        programs=programs or Programs(store.root),
        toolchain={**CHOSEN, **toolchain},
        store=store,
    )


def test_each_state_has_its_reason(store):
    ready, missing, failed, retryable, unknown = (graph(size) for size in (1, 2, 3, 4, 5))
    remember(store, ready, missing, failed, retryable)
    entry = commit(store, ready)
    for each, retry in ((failed, False), (retryable, True)):
        key = Key.of(program_of(each), CHOSEN, SETTINGS)
        store.record_failure(fake_failure(key, graph=each.name, cause="Not importable", retryable=retry))
    items = planned(store, ready, missing, failed, retryable, unknown)
    assert [(item.state, item.reason) for item in items] == [
        ("ready", ""),
        ("missing", "no artifact of this program"),
        ("failed", "failed before: Not importable"),
        ("missing", "no artifact of this program"),
        ("unknown", "this source was not exported yet"),
    ]
    assert items[0].entry == entry
    assert items[0].key == entry.key
    assert items[3].failure is not None
    assert [item.program for item in items] == [*map(program_of, (ready, missing, failed, retryable)), None]


def test_shapes_for_people_name_equal_neighbours_once():
    specs = [TensorSpec("x", "float32", shape) for shape in ((8, 4), (2,), (2,), (), (8, 4))]
    assert graph(args=tuple(specs)).shapes == "8x4 2*2 scalar 8x4"


def test_a_cause_in_a_manifest_names_no_folder_of_a_machine():
    cause = (
        "aten.mm at /home/me/x/head.py:49 in f; aten.add at /home/me/x/head.py:50 in f: cannot lower (/tmp/a b)\nmore"
    )
    assert cause_line(cause) == "aten.mm; aten.add: cannot lower (... b)"
    assert cause_line("[1/2] 3 / 4: a/b") == "[1/2] 3 / 4: a/b"


def test_another_toolchain_is_missing_and_names_the_part(store):
    remember(store, graph())
    commit(store, graph())
    (item,) = planned(store, graph(), fusion="4")
    assert (item.state, item.reason) == ("missing", "fusion 8 -> 4")


def test_another_torch_is_another_program(store):
    remember(store, graph())
    commit(store, graph())
    (item,) = planned(store, graph(), torch="2.11.0")
    assert item.state == "unknown"


def test_two_graphs_of_one_program_share_an_artifact(store):
    first, second = graph(), graph(name="the same")
    remember(store, first)
    commit(store, first)
    assert [item.state for item in planned(store, first, second)] == ["ready", "ready"]


@pytest.mark.parametrize(
    "changed",
    [
        {"constants": {"eps": 1e-6}},
        {"args": (TensorSpec("x", "bfloat16", (8,)),)},
        {"args": (TensorSpec("x", "float32", (2, 4)),)},
    ],
)
def test_another_signature_is_another_program(store, changed):
    remember(store, graph())
    assert planned(store, graph(**changed))[0].state == "unknown"


def test_another_argument_name_is_the_same_program(store):
    remember(store, graph())
    commit(store, graph())
    assert planned(store, graph(args=(TensorSpec("y", "float32", (8,)),)))[0].state == "ready"


def test_planning_writes_nothing(store):
    planned(store, graph())
    assert not store.root.exists()


# --- remembered programs ----------------------------------------------------------------------------------------------

PROGRAM = "b" * 64


def test_a_program_is_remembered_by_the_next_process(store):
    Programs(store.root).remember("s1", graph(), "2.10.0", PROGRAM)
    known = Programs(store.root)
    assert known.known("s1", graph(), "2.10.0") == PROGRAM
    assert known.known("s2", graph(), "2.10.0") is None
    assert known.known("s1", graph(), "2.11.0") is None
    assert known.known("s1", graph(9), "2.10.0") is None


def test_another_canonical_form_forgets_all(store, monkeypatch):
    Programs(store.root).remember("s1", graph(), "2.10.0", PROGRAM)
    monkeypatch.setattr("graphcache.store.programs.PROGRAM_FORMAT", "graphcache-program-99")
    assert Programs(store.root).known("s1", graph(), "2.10.0") is None


def test_damage_at_any_byte_is_a_miss_and_is_written_again(store):
    Programs(store.root).remember("s1", graph(), "2.10.0", PROGRAM)
    (path,) = (store.root / "programs").rglob("*.json")
    whole = path.read_bytes()
    path.chmod(0o644)
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert Programs(store.root).known("s1", graph(), "2.10.0") is None
    path.write_bytes(whole[:40])
    Programs(store.root).remember("s1", graph(), "2.10.0", PROGRAM)
    assert path.read_bytes() == whole


def test_a_record_under_another_question_is_refused(store):
    """A forced collision of the question's digest."""
    Programs(store.root).remember("s1", graph(), "2.10.0", PROGRAM)
    (path,) = (store.root / "programs").rglob("*.json")
    Programs(store.root).remember("s2", graph(), "2.10.0", "c" * 64)
    (other,) = set((store.root / "programs").rglob("*.json")) - {path}
    path.chmod(0o644)
    path.write_bytes(other.read_bytes())
    assert Programs(store.root).known("s1", graph(), "2.10.0") is None


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path):
    (tmp_path / "file").write_text("")
    programs = Programs(tmp_path / "file")
    programs.remember("s1", graph(), "2.10.0", PROGRAM)
    assert programs.known("s1", graph(), "2.10.0") == PROGRAM
    assert "cannot write" in programs.trouble


def manifest(source: SourceHash, *, form: str = PROGRAM_FORMAT) -> Manifest:
    made = Manifest.of(
        "demo",
        config=None,
        groups=(),
        catalogs=["demo"],
        options=CatalogOptions(),
        toolchain=CHOSEN,
        listing=Listing((graph(),), ()),
        sources={graph().name: source},
        programs={graph().name: program_of(graph())},
        compiled={graph().name: Compiled(artifact="a" * 64, size_bytes=1, cost=COST, estimate_ns=None)},
    )
    return dataclasses.replace(made, program_format=form)


def test_a_manifest_knows_programs_for_its_own_torch_and_form():
    source = sources().of(graph().function)
    known = Programs(None, known_programs([manifest(source)]))
    assert known.known(source.digest, graph(), "2.10.0") == program_of(graph())
    assert known.known(source.digest, graph(), "2.11.0") is None
    other_form = Programs(None, known_programs([manifest(source, form="other")]))
    assert other_form.known(source.digest, graph(), "2.10.0") is None


# --- costs ------------------------------------------------------------------------------------------------------------


def test_the_recorded_cost_of_the_same_graph_is_expected():
    costs = Costs()
    costs.add(graph(8), Cost(2.0, 1.0, 0))
    costs.add(graph(16), Cost(5.0, 1.0, 0))
    found = costs.expect(graph(8, name="renamed"))
    assert found is not None
    assert (found.secs, found.basis) == (2.0, "recorded")


def expected(costs, elements):
    found = costs.expect(graph(elements))
    assert found is not None
    return found.secs, found.basis


def test_the_nearest_size_of_the_same_function_is_scaled():
    costs, million = Costs(), 1 << 20
    costs.add(graph(16 * million), Cost(4.0, 1.0, 0))
    assert expected(costs, 64 * million) == (8.0, f"step[{16 * million}]")
    assert expected(costs, 4 * million) == (2.0, f"step[{16 * million}]")
    assert costs.expect(graph(8, function="pkg.graphs:other")) is None


def test_the_nearest_is_the_nearest_by_ratio():
    costs = Costs()
    costs.add(graph(1_536), Cost(5.0, 1.0, 0))
    costs.add(graph(4_194_304), Cost(4.0, 1.0, 0))
    assert expected(costs, 884_736) == (4.0, "step[4194304]")


def test_a_tiny_size_says_little_of_a_large_one_and_is_not_multiplied_by_thousands():
    costs = Costs()
    costs.add(graph(1_536), Cost(5.0, 1.0, 0))
    assert expected(costs, FLAT_ELEMENTS) == (5.0, "step[1536]")
    assert expected(costs, 4 * FLAT_ELEMENTS) == (10.0, "step[1536]")
    assert expected(costs, 2) == (5.0, "step[1536]")


def test_what_is_expected_of_other_sizes_is_close_to_what_was_measured():
    """Of each function in the committed manifests, each size from each other one."""
    measured = defaultdict(dict)
    for path in sorted((Path(__file__).parents[1] / "cache_manifests").glob("*.json")):
        for recorded in read_manifest(path).graphs:
            if recorded.compiled is not None:
                elements = sum(spec.elements for spec in recorded.graph.args)
                measured[recorded.graph.function][elements] = recorded.graph, recorded.compiled.cost
    ratios = []
    for sizes in measured.values():
        for (known, cost), (asked, took) in permutations(sizes.values(), 2):
            costs = Costs()
            costs.add(known, cost)
            found = costs.expect(asked)
            assert found is not None
            ratios.append(max(found.secs / took.wall_secs, took.wall_secs / found.secs))
    ratios.sort()
    assert len(ratios) > 100
    assert ratios[len(ratios) // 2] < 1.6
    assert ratios[len(ratios) * 9 // 10] < 3
    assert ratios[-1] < 8


def test_other_settings_are_another_cost():
    costs = Costs()
    costs.add(graph(8), Cost(2.0, 1.0, 0))
    found = costs.expect(graph(8, settings={}))
    assert found is not None
    assert found.basis == "step[8]"


# --- the trainer's look-up --------------------------------------------------------------------------------------------


@pytest.fixture
def of_repository(store):
    """A graph whose source is in this repository, built and remembered."""
    made = graph(function="tests.support.fake_tree:hash_of")
    source = SourceHashes(WorkTree()).of(made.function)
    Programs(store.root).remember(source.digest, made, "2.10.0", program_of(made))
    return made


def test_a_pod_without_the_cross_compiler_finds_the_artifact(store, of_repository):
    entry = commit(store, of_repository)
    seen = {name: value for name, value in CHOSEN.items() if name != "cross-gcc"}
    items = look_up([of_repository], store=store, toolchain=seen)
    assert entries(items, command="graphcache build") == {of_repository.name: entry}


def test_all_that_is_missing_is_said_at_once_with_the_command(store, of_repository):
    commit(store, of_repository, fusion="4")
    absent = dataclasses.replace(of_repository, name="absent", constants={"a": 1})
    items = look_up([of_repository, absent], store=store, toolchain=CHOSEN)
    with pytest.raises(MissingGraphsError) as raised:
        entries(items, command="graphcache build --shapes-from M")
    assert raised.value.message.splitlines() == [
        "2 of 2 graphs are not in the cache",
        "  step[8]: fusion 4 -> 8",
        "  absent: this source was not exported yet",
    ]
    assert raised.value.hint == "on a node with the compiler: graphcache build --shapes-from M"
    assert raised.value.exit_code == 3


def test_a_long_list_is_cut(store, of_repository):
    graphs = [dataclasses.replace(of_repository, name=f"g{i}", constants={"i": i}) for i in range(30)]
    with pytest.raises(MissingGraphsError, match="and 10 more"):
        entries(look_up(graphs, store=store, toolchain=CHOSEN), command="x")
