"""Catalogs: what several list together, and which functions of graphs that are read from a store are run."""

from __future__ import annotations

import pytest

from graphcache import catalog
from graphcache.catalog import CatalogError, CatalogOptions, check_any_graphs, list_graphs, may_be_called
from graphcache.errors import UsageError
from graphcache.graph import Graph, Listing, TensorSpec
from graphcache.header.table import TensorTable

TENSOR = (TensorSpec("x", "float32", (1,)),)


def test_a_function_beside_an_installed_catalog_may_be_called():
    assert may_be_called(Graph("g", "adamw", "trainer.graphs.adamw:adamw", TENSOR))


@pytest.mark.parametrize(
    "function", ["os:system", "subprocess:run", "trainerx:f", "", ":", ".trainer:f", "builtins:exec"]
)
def test_no_other_function_may(function):
    assert not may_be_called(Graph("g", "adamw", function, TENSOR, constants={"command": "true"}))


def test_a_function_that_is_given_no_tensor_is_no_graph():
    assert not may_be_called(Graph("g", "adamw", "trainer.run.run:main", (), constants={"argv": []}))


def listed(names: str) -> Listing:
    return list_graphs(names.split(), TensorTable.from_groups(()), None, CatalogOptions())


def of_names(*names: str):
    graphs = tuple(Graph(name, "demo", "demo.graphs:f", TENSOR) for name in names)
    return lambda table, config, options: Listing(graphs, ())


@pytest.fixture
def three(monkeypatch):
    found = {"one": of_names("a", "b"), "two": of_names("c", "a"), "twice": of_names("d", "d")}
    monkeypatch.setattr(catalog, "load", found.__getitem__)


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(("names", "who"), [("one two", "'one' and 'two'"), ("one twice", "'twice' and 'twice'")])
def test_graphs_of_one_name_are_refused_with_the_catalogs_that_list_them(names, who):
    with pytest.raises(CatalogError, match=f"of the catalogs {who}"):
        listed(names)
    assert [graph.name for graph in listed("two").graphs] == ["c", "a"]


def test_no_graph_at_all_is_the_wrong_model():
    with pytest.raises(UsageError, match="adamw, head list no graph"):
        check_any_graphs(Listing((), ()), ["adamw", "head"])
    check_any_graphs(of_names("a")(None, None, None), ["adamw"])
