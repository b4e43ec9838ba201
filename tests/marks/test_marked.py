"""Marked functions and recorded runs, without a compiler: what a call means, what it refuses, what is written down."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from cli.main import run
from graphcache import Compiled, MissingGraphsError, TensorSpec, UsageError, compiled, record
from graphcache.marks.list_marked import list_marked
from graphcache.marks.marked import marked_graphs
from graphcache.marks.recorded import read_shapes
from tests.support.fake_tree import hash_of
from tests.support.marked import anything, project, scaled

MODULE = "tests.support.marked"


def bf16(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "graphcache.cache.runtime_parts", lambda fusion, memo: {"torch": "2.10.0", "fusion": str(fusion)}
    )


def test_a_call_is_a_graph_of_the_functions_own_name():
    graph = project.graph(bf16(8, 64), bf16(16, 64))
    assert graph.name == "project[bfloat16 8x64 16x64]"
    assert graph.function == f"{MODULE}:project"
    assert graph.args == (TensorSpec("x", "bfloat16", (8, 64)), TensorSpec("w", "bfloat16", (16, 64)))
    assert graph.settings is None
    assert graph.load_function() is project.function
    assert project.__doc__ == "x @ w^T"


def test_constants_are_part_of_the_graph():
    x, by = torch.ones(4, 2), torch.tensor(2.0)
    assert scaled.graph(x, by, times=3.0).name == "scaled[float32 4x2 scalar times=3.0]"
    assert scaled.graph(x, by).constants == {}
    with pytest.raises(UsageError, match="a constant of a graph is a number"):
        scaled.graph(x, by, times=x)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ((bf16(8, 64), bf16(16, 65)), "w has 65 where h is 64"),
        ((bf16(8, 64).float(), bf16(16, 64)), r"x is float32\[8, 64\], and its mark says bfloat16 \[t h\]"),
        ((bf16(8), bf16(16, 64)), r"x is bfloat16\[8\], and its mark says"),
        ((bf16(8, 64),), "takes 2 tensors, not 1"),
    ],
)
def test_other_tensors_than_the_mark_says_are_refused(tensors, text):
    with pytest.raises(UsageError, match=text):
        project(*tensors)


def test_a_number_in_a_mark_is_that_size():
    with pytest.raises(UsageError, match="x has 5 where 4 is 4"):
        scaled.graph(torch.ones(5, 2), torch.tensor(1.0))


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (("t h", "float8 t"), "takes 1 tensors, and 2 have sizes"),
        (("t-h",), "'t-h' in 't-h' is neither"),
    ],
)
def test_a_mark_that_says_nothing_is_refused(mark, text):
    with pytest.raises(UsageError, match=text):
        compiled(*mark)(anything.function)


def test_a_function_that_no_process_could_find_is_refused():
    with pytest.raises(UsageError, match="not at the top level"):
        compiled()(lambda x: x)
    with pytest.raises(UsageError, match="'real' is no dtype"):
        compiled("t", dtype="real")(anything.function)


def test_a_miss_names_the_command_and_compiles_nothing(tmp_path):
    with pytest.raises(MissingGraphsError) as raised:
        project(bf16(8, 64), bf16(16, 64))
    assert raised.value.hint.endswith(f"build --from {MODULE} --dim t=8 --dim h=64 --dim o=16")
    with pytest.raises(MissingGraphsError) as raised:
        anything(torch.ones(3))
    assert "--shapes FILE" in raised.value.hint
    assert not (tmp_path / "cache").exists()


def broken_run(file):
    with record(file):
        anything(torch.ones(3))
        raise RuntimeError("in the run")


def test_a_recorded_run_computes_by_torch_and_is_written_down(tmp_path):
    file = tmp_path / "shapes.json"
    with record(file):
        assert torch.equal(project(bf16(8, 64), bf16(16, 64)), bf16(8, 16) * 64)
        project(bf16(8, 64), bf16(16, 64))
        with pytest.raises(UsageError, match="recorded already"), record(tmp_path / "other"):
            pass
    with pytest.raises(RuntimeError, match="in the run"):
        broken_run(file)
    assert [graph.name for graph in read_shapes(file)] == ["anything[float32 3]", "project[bfloat16 8x64 16x64]"]
    assert read_shapes(file)[1] == project.graph(bf16(8, 64), bf16(16, 64))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "graphcache-shapes-1", "graphs": [{"name": 1}]}', "\0"])
def test_a_file_that_is_no_record_stays(tmp_path, text):
    file = tmp_path / "notes"
    file.write_text(text)
    with pytest.raises(UsageError, match="holds no recorded shapes"), record(file):
        pass
    assert file.read_text() == text


def test_sizes_give_the_graphs_of_a_module():
    dims = {"t": 8, "h": 64, "o": 16}
    found = {graph.name for graph in marked_graphs(MODULE, dims)}
    assert found == {"project[bfloat16 8x64 16x64]", "scaled[float32 4x64 scalar]"}
    assert marked_graphs(MODULE, {}) == []
    with pytest.raises(UsageError, match=r"no function of .* has a size 'z'"):
        marked_graphs(MODULE, {"z": 1})
    for module, text in (("tests.no_such", "cannot be imported"), ("json", "has no function")):
        with pytest.raises(UsageError, match=text):
            marked_graphs(module, {})


# --- the source hash --------------------------------------------------------------------------------------------------

PLAIN = """
import graphcache
from graphcache import compiled


{}def step(x):
    return x


{}def other(x):
    return {}
"""


def digest(mark: str = "", others: str = "", result: str = "x") -> str:
    files = {"pkg/__init__.py": "", "pkg/graphs.py": PLAIN.format(mark, others, result)}
    return hash_of(files).digest


def test_a_mark_is_no_part_of_a_graphs_source():
    """Nor is what other marked functions of the module do."""
    marks = ['@compiled("t h")\n', "@graphcache.compiled()\n", '@graphcache.compiled("8", settings={})\n']
    results = ("x", "x + 1")
    assert {digest(mark, *others) for mark in marks for others in zip(marks, results, strict=False)} == {digest()}


def test_any_other_decorator_is():
    assert digest("@graphcache.other()\n") != digest()
    assert digest("@compiled\n") != digest()


# --- the command ------------------------------------------------------------------------------------------------------

SCRIPT = """
from graphcache import compiled

print("imported")


@compiled("t 8", dtype="bfloat16")
def double(x):
    return x + x
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "doubling.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "doubling"


def test_a_process_of_its_own_lists_a_modules_graphs(script):
    (graph,) = list_marked(script, {"t": 4})
    assert (graph.name, graph.function) == ("double[bfloat16 4x8]", "doubling:double")
    assert script not in sys.modules
    with pytest.raises(UsageError, match="has a size 'z'"):
        list_marked(script, {"z": 4})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "--shapes-from MODEL or --from MODULE"),
        (["--from", "doubling", "--shapes-from", "x"], "--shapes-from MODEL or --from MODULE"),
        (["--shapes-from", "x", "--dim", "t=4"], "--dim and --shapes are for"),
        (["--from", "doubling", "--only", "adamw"], "--only and --manifest are for"),
        (["--from", "doubling", "--set", "a.b=1", "--sequence", "64"], "--sequence, --set would be of no effect"),
        (["--from", "doubling"], "no size of theirs is known"),
        (["--from", "doubling", "--dim", "t=x"], "'t=x' is not a new name and its size"),
        (["--from", "doubling", "--dim", "t=4", "--dim", "t=5"], "'t=5' is not a new name"),
        (["--from", "doubling", "--shapes", "nothing"], "nothing cannot be read"),
    ],
)
def test_a_build_from_nowhere_is_refused(script, args, text, capsys):
    assert run(["build", *args]) == 2
    assert text in capsys.readouterr().err


def test_a_script_is_found_under_its_own_name(tmp_path):
    more = "print(double.module, double._command(double.graphs({'t': 4})[0]))"
    (tmp_path / "script.py").write_text(f"{SCRIPT}\n{more}\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = done.stdout.splitlines()[-1]
    assert printed == f"script env PYTHONPATH={tmp_path} graphcache build --from script --dim t=4"


def test_the_public_name_is_the_mark_of_the_source_hash():
    from graphcache.source.module import MARK

    assert f"graphcache.{compiled.__name__}" == MARK
    assert isinstance(project, Compiled)
