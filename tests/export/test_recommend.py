"""Which compiler settings a graph without any gets: those that this project's own catalogs chose by measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions, list_graphs
from graphcache.export.program import export
from graphcache.graph import Graph, TensorSpec
from graphcache.header.table import TensorTable
from graphcache.manifest.file import read_manifest

ROOT = Path(__file__).parents[2]
PRODUCTS = {"tactic": "compute-bound", "unique-shapes": "4"}
SMOLLM2 = read_manifest(ROOT / "cache_manifests" / "smollm2-135m.json")


def low_rank(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w.t() + (x @ a.t()) @ b.t()


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x @ y)


def by_einsum(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("ij,jk->ik", x, y)


def swapped_halves(x: Tensor, y: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((x[:, half:], x[:, :half]), -1) * y


def side_by_side(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x, y), -1)


def below_one_another(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x[1:], x[:1])) + y


def softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x + y, -1)


def chosen(function: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", settings: dict[str, str] | None = None):
    args = tuple(TensorSpec(f"x{i}", dtype, shape) for i, shape in enumerate(shapes))
    return dict(export(Graph("g", "c", f"{__name__}:{function}", args, settings=settings)).settings)


@pytest.mark.parametrize(
    ("function", "shapes", "dtype", "settings"),
    [
        ("low_rank", ((64, 576), (576, 576), (16, 576), (576, 16)), "bfloat16", PRODUCTS),
        ("product", ((64, 64), (64, 64)), "bfloat16", PRODUCTS),
        ("by_einsum", ((64, 64), (64, 64)), "bfloat16", PRODUCTS),
        ("product", ((64, 64), (64, 64)), "float32", {**PRODUCTS, "implicit-casts": "off"}),
        ("product", ((64, 63), (63, 64)), "bfloat16", {}),
        ("product", ((64, 63), (63, 64)), "float32", {"implicit-casts": "off"}),
        ("swapped_halves", ((64, 64), (64, 64)), "bfloat16", {"tactic": "compute-bound"}),
        ("side_by_side", ((64, 64), (64, 64)), "bfloat16", {}),
        ("below_one_another", ((64, 64), (64, 64)), "bfloat16", {}),
        ("softmax", ((64, 64), (64, 64)), "float32", {}),
    ],
)
def test_settings_follow_from_what_a_program_does(function, shapes, dtype, settings):
    assert chosen(function, *shapes, dtype=dtype) == settings


def test_given_settings_stay_and_none_given_is_not_the_compilers_own_choice():
    square = ((64, 64), (64, 64))
    assert chosen("product", *square, settings={"tactic": "io-bound"}) == {"tactic": "io-bound"}
    assert chosen("product", *square, settings={}) == {}


def listed(name: str) -> list[Graph]:
    table = TensorTable.from_groups(SMOLLM2.groups)
    return list(list_graphs([name], table, SMOLLM2.config, CatalogOptions(sequence=64)).graphs)


@pytest.mark.parametrize("name", ["adamw", "head", "layer", "tiles"])
def test_our_catalogs_would_be_given_what_they_chose(name):
    """A stranger's graph that does the same compiles as soon."""
    other = {g.name: (dict(export(replace(g, settings=None)).settings), dict(g.settings)) for g in listed(name)}
    assert {name: pair for name, pair in other.items() if pair[0] != pair[1]} == {}


def test_the_graphs_of_our_catalogs_say_what_they_chose():
    """None of their keys hangs on what is recommended."""
    assert all(graph.settings is not None for name in SMOLLM2.catalogs for graph in listed(name))
    text = json.dumps([graph.as_json() for graph in listed("adamw")])
    assert "by_content" not in text
