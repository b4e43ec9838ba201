"""Graphs through their row tiles: part by part against the whole graph, and whole models against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcache.catalog import CatalogOptions
from graphcache.device.base import LoadedGraph
from graphcache.graph import Graph, TensorSpec, Way
from tests.support.tiny import LLAMA, QWEN2
from tests.trainer.model.fake_backend import FakeBackend
from tests.trainer.model.test_gradients import random_batches, random_model, reference
from tests.trainer.model.whole import loss_and_gradients
from trainer.architecture.config import ModelConfig
from trainer.catalogs import head, layer, row_tiles
from trainer.device.cpu import CpuBackend
from trainer.model.graph_set import GraphSet

# What a tile is called with in one call as well: their values are whole numbers, so that sums are exact in any order.
PRODUCTS = ("linear", "linear_residual", "input_grad", "weight_grad", "scores", "attend", "attend_backward")
EXACT = (*PRODUCTS, "chunk_input_grad", "split_heads", "join_heads", "bias_grad", "join")
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-7}


class Tiled(FakeBackend):
    """Runs each graph by the way of the most calls that it has."""

    def load(self, graph: Graph) -> LoadedGraph:
        ways = [way for way in graph.ways if way.calls > 1]
        if not ways:
            return super().load(graph)
        way = max(ways, key=lambda way: way.calls)
        return LoadedGraph(way.graph, (), way.graph.load_function(), way)


class By(CpuBackend):
    """Runs a graph by one of its ways."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way

    def load(self, graph: Graph) -> LoadedGraph:
        if self.way not in graph.ways:
            return super().load(graph)
        found = super().load(self.way.graph)
        return LoadedGraph(found.graph, found.outputs, found.program, self.way)


def values(spec: TensorSpec, exact: bool) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    if exact:
        return torch.randint(-1, 2, spec.shape).to(dtype)
    return torch.randn(spec.shape).to(dtype)


def results(backend: CpuBackend, part: str, graphs: dict[str, Graph], inputs: list[Tensor]) -> list[Tensor]:
    """Of one call through a GraphSet, which frees nothing of the caller's and leaves nothing behind."""
    found = GraphSet(backend, {part: graphs[part]})
    found.load()
    args = [backend.upload(tensor, "x") for tensor in inputs]
    before = backend.bytes_in_use
    made = found.call(part, *args)
    assert backend.bytes_in_use - before == sum(buffer.size_bytes for buffer in made)
    assert all(torch.equal(backend.download(arg), tensor) for arg, tensor in zip(args, inputs, strict=True))
    return [backend.take(buffer) for buffer in made]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("config", "sequence", "micro_batch"), [(LLAMA, 48, 2), (QWEN2, 24, 4), (QWEN2, 40, 1)])
def test_every_part_by_every_way_gives_what_the_whole_graph_gives(
    config: dict[str, Any], sequence: int, micro_batch: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tiles, "TILE_ROWS", (32, 8))
    torch.manual_seed(0)
    model = ModelConfig.from_json(config)
    options = CatalogOptions(sequence=sequence, micro_batch=micro_batch, dtype=dtype)
    tried = 0
    for graphs in (layer.parts(model, options), head.parts(model, options)):
        for part, graph in graphs.items():
            name = graph.function.partition(":")[2]
            inputs = [values(spec, name in EXACT) for spec in graph.args]
            wanted = results(CpuBackend(), part, graphs, inputs)
            for way in (way for way in graph.ways if way.calls > 1):
                found = results(By(way), part, graphs, inputs)
                tried += 1
                for one, other in zip(found, wanted, strict=True):
                    assert (one.dtype, one.shape) == (other.dtype, other.shape)
                    if name in EXACT:
                        assert torch.equal(one, other), f"{graph.name} {way}"
                    else:
                        torch.testing.assert_close(one, other, rtol=TOLERANCE[dtype], atol=1e-4)
    assert tried > 20


@pytest.mark.parametrize("name", ["llama", "qwen2-tied"])
@pytest.mark.parametrize("tiles", [(64,), (32, 16)], ids=["two calls", "six calls"])
def test_loss_and_gradients_through_row_tiles(
    name: str, tiles: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tiles, "TILE_ROWS", tiles)
    model = random_model(name)
    batches = random_batches(2, 2, 48)
    backend = Tiled()
    options = CatalogOptions(sequence=48, micro_batch=2, dtype="float32")
    state = {n: p.detach() for n, p in model.named_parameters()}
    loss, gradients = loss_and_gradients(backend, model.config.to_dict(), state, batches, options)
    assert any("join_rows" in graph for graph in backend.calls)
    assert loss == pytest.approx(reference(model, batches), rel=1e-6)
    errors = {n: ((gradients[n] - p.grad).norm() / p.grad.norm()).item() for n, p in model.named_parameters()}
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [
        (512, [256, 128, 64]),
        (384, [128, 64]),
        (4096, [2048, 1024, 512, 256, 128, 64]),
        (1000, [500, 250, 125]),
        (32, [16, 8]),
        (64, [32, 16, 8]),
        (7, []),
    ],
)
def test_sizes_of_tiles_divide_the_rows(rows: int, tiles: list[int]) -> None:
    assert row_tiles.row_tiles(rows) == tiles


def test_more_rows_need_few_new_compiles() -> None:
    """All but attention's core of a longer sequence, and all of a larger micro-batch, is served by what a smaller one
    compiles, but for the joins of rows."""
    model = ModelConfig.from_json(LLAMA)

    def whole(sequence: int, micro_batch: int) -> set[str]:
        options = CatalogOptions(sequence=sequence, micro_batch=micro_batch)
        return {g.name for g in (layer.parts(model, options) | head.parts(model, options)).values()}

    def lacking(sequence: int, micro_batch: int) -> set[str]:
        options, there = CatalogOptions(sequence=sequence, micro_batch=micro_batch), whole(128, 1)
        graphs = (layer.parts(model, options) | head.parts(model, options)).values()
        ways = ({graph.name, *(way.graph.name for way in graph.ways)} for graph in graphs)
        return {min(names) for names in ways if not names & there}

    assert lacking(128, 4) == set()
    assert {name.partition("[")[0] for name in lacking(512, 1)} == {f"layer.{part}" for part in layer.CORE}
