"""Matrices cut into AdamW's tiles and joined again, with the graphs that the catalog lists."""

from __future__ import annotations

import pytest
import torch

from graphcache.catalog import CatalogOptions
from graphcache.device.base import LoadedGraph
from graphcache.graph import Graph
from graphcache.header.table import read_table
from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import Weight, device_weights, parameter_shapes
from trainer.catalogs.tiles import catalog
from trainer.device.cpu import CpuBackend
from trainer.model.tiles import TileRunner


class FakeLoader(CpuBackend):
    """Remembers which graphs were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Graph] = {}

    def load(self, graph: Graph) -> LoadedGraph:
        self.asked[graph.name] = graph
        return super().load(graph)


@pytest.mark.parametrize("tile_elements", [1 << 20, 1000, 7])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_gradient_is_rounded_once_and_comes_back_in_its_place(dtype: str, tile_elements: int) -> None:
    backend = CpuBackend()
    weight, vector = Weight("ab", (("a", (13, 77)), ("b", (5, 77)))), Weight("norm", (("norm", (77,)),))
    runner = TileRunner(backend, [weight, vector], CatalogOptions(tile_elements=tile_elements, dtype=dtype))
    runner.load()
    total = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    names, tiles = zip(*runner.cut(weight, backend.upload(total, "total")), strict=True)
    assert {tile.spec.dtype for tile in tiles} == {dtype}
    assert max(tile.spec.elements for tile in tiles) <= tile_elements
    elements = {
        part: sum(t.spec.elements for name, t in zip(names, tiles, strict=True) if name == part) for part in "ab"
    }
    assert elements == {"a": 13 * 77, "b": 5 * 77}
    joined = runner.join(weight, tiles)
    assert torch.equal(backend.download(joined), total.to(getattr(torch, dtype)))
    backend.free(joined)
    assert backend.bytes_in_use == 0


@pytest.mark.parametrize("tile_elements", [600, 1 << 20])
@pytest.mark.parametrize("config", [LLAMA, QWEN2])
def test_the_catalog_lists_what_a_layer_loads(config: dict[str, object], tile_elements: int, tmp_path) -> None:
    options = CatalogOptions(tile_elements=tile_elements)
    backend = FakeLoader()
    TileRunner(backend, device_weights(parameter_shapes(ModelConfig.from_json(config))), options).load()
    listed = catalog(read_table(write_checkpoint(tmp_path / "model", config)), config, options)
    assert {graph.name: graph for graph in listed.graphs} == backend.asked
    assert {use.graph for use in listed.uses} == set(backend.asked)
