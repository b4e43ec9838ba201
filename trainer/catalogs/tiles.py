"""The graphs between a layer's gradients and weights and AdamW's flat tiles, listed from the tensor table. No torch.

Cutting a matrix into tiles needs no graph: flat pieces of contiguous memory are views (`DeviceBackend.cut`). As a
graph it costs the compiler 20 to 46 s for a 4096 x 4096 weight, against 1 to 3 s for the two here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, Listing, TensorSpec, Use
from trainer.catalogs.adamw import decoder_matrices, tiles

if TYPE_CHECKING:
    from graphcache.shapes import TensorTable

MODULE = "trainer.graphs.tiles"


def cast(elements: int, dtype: str) -> Graph:
    """A tile of a gradient, [elements] float32, to the policy's dtype."""
    args = (TensorSpec("total", "float32", (elements,)),)
    return Graph(f"tiles.cast[{elements}]", "tiles", f"{MODULE}:cast", args, {"dtype": dtype})


def join(shape: tuple[int, ...], sizes: tuple[int, ...], dtype: str) -> Graph:
    """Tiles of `sizes` elements of the policy's dtype to one weight of `shape`."""
    args = tuple(TensorSpec(f"tile{i}", dtype, (size,)) for i, size in enumerate(sizes))
    label = "x".join(map(str, shape))
    return Graph(f"tiles.join[{label}]", "tiles", f"{MODULE}:join", args, {"shape": list(shape)})


def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """Entry point `tiles`. Needs no config: the table has every weight's shape."""
    uses: dict[str, Use] = {}
    graphs: dict[str, Graph] = {}
    for (short, shape), count in sorted(decoder_matrices(table).items()):
        sizes = tiles(shape[0] * shape[1], options.tile_elements)
        for size in sorted(set(sizes), reverse=True):
            graph = cast(size, options.dtype)
            graphs[graph.name] = graph
            uses[f"{graph.name} {short}"] = Use(graph.name, short, count, sizes.count(size))
        graph = join(shape, sizes, options.dtype)
        graphs[graph.name] = graph
        uses[f"{graph.name} {short}"] = Use(graph.name, short, count, 1)
    return Listing(tuple(graphs[name] for name in sorted(graphs)), tuple(uses[key] for key in sorted(uses)))
