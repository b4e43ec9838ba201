"""Graphs for the fake worker. Their function is never called; it is there to have a source."""

from __future__ import annotations

from typing import Any

from graphcache.graph import Graph, TensorSpec

FUNCTION = "tests.support.fake_graphs:step"


def step(x: Any, **constants: Any) -> Any:
    """What the source hash covers."""
    return x


def fake_graph(name: str, elements: int = 16, function: str = FUNCTION, **constants: Any) -> Graph:
    return Graph(name, "fake", function, (TensorSpec("x", "float32", (elements,)),), constants=constants)
