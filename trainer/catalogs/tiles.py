"""The graphs between a layer's gradients and weights and AdamW's flat tiles, listed from the tensor table. No torch.

Cutting a matrix into tiles needs no graph: flat pieces of contiguous memory are views (`DeviceBackend.cut`). As a
graph it costs the compiler 20 to 46 s for a 4096 x 4096 weight, against 1 to 3 s for the two here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.architecture.parameters import Weight, device_weights
from trainer.catalogs.adamw import decoder_matrices, tiles

if TYPE_CHECKING:
    from graphcache.header.table import TensorTable

MODULE = "trainer.graphs.tiles"


def cuts(weight: Weight, options: CatalogOptions) -> list[tuple[str, int]]:
    """The tiles of a matrix in order: the parameter that each belongs to, and its elements."""
    return [
        (name, size) for name, (rows, columns) in weight.parts for size in tiles(rows * columns, options.tile_elements)
    ]


def cast(elements: int, dtype: str) -> Graph:
    """A tile of a gradient, [elements] float32, to the compute dtype."""
    args = (TensorSpec("total", "float32", (elements,)),)
    return Graph(f"tiles.cast[{elements}]", "tiles", f"{MODULE}:cast", args, constants={"dtype": dtype}, settings={})


def join(weight: Weight, options: CatalogOptions) -> Graph:
    """A matrix's tiles to the matrix."""
    sizes = [size for _, size in cuts(weight, options)]
    args = tuple(TensorSpec(f"tile{i}", options.dtype, (size,)) for i, size in enumerate(sizes))
    shape = "x".join(map(str, weight.shape))
    runs = "+".join(f"{len(list(run))}*{size}" for size, run in groupby(sizes))
    name, constants = f"tiles.join[{shape} of {runs}]", {"shape": list(weight.shape)}
    return Graph(name, "tiles", f"{MODULE}:join", args, constants=constants, settings={})


def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """Entry point `tiles`. Needs no config: the table has every weight's shape."""
    graphs: dict[str, Graph] = {}
    uses: list[Use] = []
    matrices = Counter(weight for shapes in decoder_matrices(table).values() for weight in device_weights(shapes))
    for weight, layers in sorted(matrices.items(), key=lambda found: found[0].name):
        sizes = Counter(size for _, size in cuts(weight, options))
        needed = [(cast(size, options.dtype), calls) for size, calls in sorted(sizes.items())]
        for graph, calls in [*needed, (join(weight, options), 1)]:
            graphs[graph.name] = graph
            uses.append(Use(graph.name, weight.name, layers, calls))
    return Listing(tuple(graphs[name] for name in sorted(graphs)), tuple(uses))
