"""Programs: what makes two of them one, what does not, and that a digest is the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from graphcache.graph import Graph, TensorSpec  # noqa: E402
from graphcache.program import ExportError, answers, canonical, export  # noqa: E402
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
    other = Graph("another-name", "another", graph.function, args, {}, {"tactic": "io-bound"})
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
    assert first == last
    assert first["program"] == program("scaled_sum")
    assert error["error"]["name"] == "export"


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_and_hash_seed_give_the_same_digest(seed: str) -> None:
    names = ("scaled_sum", "with_table", "two_results")
    done = subprocess.run(
        [sys.executable, "-m", "graphcache.program"],
        input="".join(json.dumps(graph_of(name).as_json()) + "\n" for name in names),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    found = [json.loads(line)["program"] for line in done.stdout.splitlines()]
    assert found == [program(name) for name in names]
