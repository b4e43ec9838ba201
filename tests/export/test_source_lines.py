"""Operators and results are found in the source again. torch alone; the compiler's part is in tests/compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from torch.fx.proxy import TracerBase

from graphcache.export.program import ExportError, export
from graphcache.export.source_lines import line_of, operator_at
from graphcache.toolchain.refused_source import blamed, dropped_results
from graphcache.vendor.layouts import VendorError
from tests.support import programs
from tests.support.programs import graph_of
from tests.support.vendor_texts import LOGSUMEXP, OLDER_SORT


def line(function: Callable[..., Any], text: str) -> str:
    """Where `text` stands in a function of programs.py."""
    lines, start = inspect.getsourcelines(function)
    (offset,) = (i for i, each in enumerate(lines) if text in each)
    return f"tests/support/programs.py:{start + offset} in {function.__name__}"


def test_each_operator_has_its_own_line_also_in_a_helper() -> None:
    nodes = {node.name: node for node in export(graph_of("renamed")).module.graph.nodes}
    assert line_of(nodes["add"]) == line(programs._added, "first + second")
    assert operator_at(nodes["mul"]) == f"aten.mul.Tensor at {line(programs.renamed, 'both * 2.0')}"
    assert line_of(nodes["args_0"]) == ""


def test_torch_is_left_as_it_was() -> None:
    before = TracerBase._filter_traceback_frames
    with pytest.raises(ExportError):
        export(graph_of("branches_on_values"))
    assert TracerBase._filter_traceback_frames is before


def test_the_operator_that_a_message_names_is_blamed() -> None:
    module = export(graph_of("log_of_sum")).module
    place = line(programs.log_of_sum, "logsumexp")
    assert blamed(module, VendorError(LOGSUMEXP)).startswith(
        f"aten.logsumexp.default at {place}: failed to compile: failed to import dfg: Not importable"
    )


def test_an_operator_is_also_found_by_its_name_after_lowering() -> None:
    module = export(graph_of("sorted_sum")).module
    place = line(programs.sorted_sum, "torch.sort")
    assert blamed(module, VendorError(OLDER_SORT)).startswith(f"aten.sort.default at {place}: unsupported EDF node")


def test_a_message_that_names_none_lists_the_few_that_it_is_about() -> None:
    module = export(graph_of("scaled_sum")).module
    listed = "failed\nsource:\n    add      x.py:1     x + y\n    mul      x.py:2     y\ncompile error:\nno tactic"
    add, mul = line(programs.scaled_sum, "x + y"), line(programs.scaled_sum, "* 2.0")
    assert (
        blamed(module, VendorError(listed)) == f"aten.add.Tensor at {add}; aten.mul.Tensor at {mul}: failed: no tactic"
    )
    assert blamed(module, VendorError("no memory")) == "no memory"


def test_results_that_are_dropped_are_named() -> None:
    module = export(graph_of("returns_what_it_was_given")).module
    view = line(programs.returns_what_it_was_given, "y.reshape")
    total = line(programs.returns_what_it_was_given, "total = ")
    assert dropped_results(module, 3) == (
        f"result 1 is a view of an argument ({view}); result 2 is an argument; "
        f"result 3 is the same as result 0 ({total})"
    )
    assert dropped_results(module, 2).startswith("the others are arguments"), "it is not clear which"
