"""Which functions of graphs that are read from a store are run."""

from __future__ import annotations

import pytest

from graphcache.catalog import may_be_called
from graphcache.graph import Graph, TensorSpec

TENSOR = (TensorSpec("x", "float32", (1,)),)


def test_a_function_beside_an_installed_catalog_may_be_called():
    assert may_be_called(Graph("g", "adamw", "trainer.graphs.adamw:adamw", TENSOR))


@pytest.mark.parametrize(
    "function", ["os:system", "subprocess:run", "trainerx:f", "", ":", ".trainer:f", "builtins:exec"]
)
def test_no_other_function_may(function):
    assert not may_be_called(Graph("g", "adamw", function, TENSOR, {"command": "true"}))


def test_a_function_that_is_given_no_tensor_is_no_graph():
    assert not may_be_called(Graph("g", "adamw", "trainer.run:main", (), {"argv": []}))
