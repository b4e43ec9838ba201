"""Programs: what makes two of them one, what does not, and that a digest is the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from graphcache.errors import SpoiledError  # noqa: E402
from graphcache.export.program import ExportError, answers, canonical, export  # noqa: E402
from graphcache.graph import Graph, TensorSpec  # noqa: E402
from graphcache.source.hash import digest_now  # noqa: E402
from tests.support.programs import graph_of  # noqa: E402


def program(function: str, **kwargs: object) -> str:
    return export(graph_of(function, **kwargs)).program  # type: ignore[arg-type]


def test_names_helpers_and_comments_are_no_part_of_it() -> None:
    assert program("renamed") == program("scaled_sum")


@pytest.mark.parametrize("function", ["other_constant", "integer_constant", "other_operator", "other_order"])
def test_what_a_compiler_could_see_is_part_of_it(function: str) -> None:
    assert program(function) != program("scaled_sum")


def test_shapes_and_dtypes_are_part_of_it() -> None:
    found = {program("scaled_sum"), program("scaled_sum", shape=(8,)), program("scaled_sum", shape=(2, 2))}
    assert len(found | {program("scaled_sum", dtype="bfloat16")}) == 4


def test_constants_count_by_content() -> None:
    assert program("with_table") != program("with_other_table")
    assert program("with_keyword", times=2.0) == program("scaled_sum")
    assert program("with_keyword", times=3.0) != program("scaled_sum")


def test_names_of_arguments_and_graphs_are_no_part_of_it() -> None:
    graph = graph_of("scaled_sum")
    args = tuple(TensorSpec(f"other_{a.name}", a.dtype, a.shape) for a in graph.args)
    other = Graph("another-name", "another", graph.function, args, constants={}, settings={"tactic": "io-bound"})
    assert export(other).program == export(graph).program


def test_results_have_their_dtypes_and_shapes() -> None:
    assert export(graph_of("two_results")).outputs == (
        TensorSpec("out0", "float32", (4,)),
        TensorSpec("out1", "bfloat16", (4,)),
    )


def test_the_canonical_form_holds_no_name_of_ours() -> None:
    text = json.dumps(canonical(export(graph_of("renamed")).module))
    for word in ("left", "right", "both", "_added", "renamed", os.getcwd(), ".py"):
        assert word not in text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("branches_on_values", "cannot be exported"),
        ("returns_no_tensor", "result 1 is 1.0"),
        ("no_such_function", "cannot be imported"),
    ],
)
def test_what_cannot_be_a_graph_is_refused_with_its_name(function: str, words: str) -> None:
    with pytest.raises(ExportError, match=words):
        export(graph_of(function))


def test_as_a_command_it_answers_each_line() -> None:
    lines = [json.dumps(graph_of(name).as_json()) for name in ("scaled_sum", "branches_on_values", "renamed")]
    first, error, last = answers(lines)
    assert (first["program"], first["outputs"]) == (last["program"], last["outputs"])
    assert first["program"] == program("scaled_sum")
    assert first["source"] == digest_now(graph_of("scaled_sum").function) != last["source"]
    assert (error["error"]["name"], error["last"]) == ("export", False)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_and_hash_seed_give_the_same_digest(seed: str) -> None:
    names = ("scaled_sum", "with_table", "two_results")
    done = subprocess.run(
        [sys.executable, "-m", "graphcache.export.program"],
        input="".join(json.dumps(graph_of(name).as_json()) + "\n" for name in names),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    found = [json.loads(line)["program"] for line in done.stdout.splitlines()]
    assert found == [program(name) for name in names]


# --- torch's global state ---------------------------------------------------------------------------------------------

CHANGES = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "default device": "torch.set_default_device('meta')",
    "grad mode": "torch.set_grad_enabled(False)",
    "autocast": "torch.set_autocast_enabled('cpu', True)",
}
READS_STATE = "def reads(x):\n    return x.mul(torch.full((4,), 2.0)).matmul(torch.ones(4, requires_grad=True))\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Callable[[str], Graph]]]:
    """Makes a module of graphs from its text; what it does to torch's state is undone in the end, should export not."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def make(text: str) -> Callable[[str], Graph]:
        name = f"module_of_graphs_{tmp_path.name.replace('-', '_')}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(f"import torch\n{text}\n")
        made.append(name)
        return lambda function: Graph(function, "c", f"{name}:{function}", (TensorSpec("x", "float32", (4,)),))

    yield make
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch._C._set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("what", CHANGES)
def test_a_module_that_changes_torchs_state_is_refused_and_changes_no_other_program(module, what: str) -> None:
    reads = module(READS_STATE)("reads")
    before = export(reads).program
    with pytest.raises(SpoiledError, match=f"importing .* changes torch's {what}"):
        export(module(f"{CHANGES[what]}\ndef one(x):\n    return x + 1\n")("one"))
    assert export(reads).program == before


def test_a_graph_that_changes_torchs_state_when_it_is_called_is_refused(module) -> None:
    changing = module("def one(x):\n    torch.set_default_dtype(torch.float64)\n    return x + 1\n")
    with pytest.raises(SpoiledError, match=r"calling .* changes torch's default dtype"):
        export(changing("one"))
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("text", ["import nothing_like_this", "def one(x):\n    raise ValueError\n"])
def test_a_change_counts_also_when_the_export_fails(module, text: str) -> None:
    """Modules that were imported meanwhile stay."""
    with pytest.raises(SpoiledError, match="default dtype"):
        export(module(f"torch.set_default_dtype(torch.float64)\n{text}")("one"))
    assert torch.get_default_dtype() == torch.float32


def test_after_a_change_of_torchs_state_nothing_more_is_answered(module) -> None:
    changing = module("def one(x):\n    torch.set_default_dtype(torch.float64)\n    return x + 1\n")("one")
    lines = [json.dumps(graph.as_json()) for graph in (graph_of("scaled_sum"), changing, graph_of("renamed"))]
    first, last = answers(lines)
    assert "program" in first
    assert last["last"]
