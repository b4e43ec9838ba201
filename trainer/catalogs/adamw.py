"""The AdamW graphs of a resident update: every 2-D weight of the decoder layers, as flat tiles. No torch.

The update is elementwise, so a graph is told the number of elements and nothing of a weight's shape: weights of equal
element counts share a graph, and a large weight is several calls of one. `docs/results/adamw-tiles.md` has the
measurements behind the tile's default size.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphcache.catalog import CatalogOptions
from graphcache.graph import Graph, Listing, TensorSpec, Use

if TYPE_CHECKING:
    from graphcache.header.table import TensorTable
    from trainer.architecture.parameters import Shape

FUNCTION = "trainer.graphs.adamw:adamw"
FLOAT = "float32"
# In the order of the function's arguments, [1] float32 each.
SCALARS = (
    "grad_scale",
    "beta1",
    "one_minus_beta1",
    "beta2",
    "one_minus_beta2",
    "step_size",
    "inv_sqrt_bias_correction2",
    "eps",
    "decay",
)

_LAYER = re.compile(r"(?:^|\.)layers\.\d+\.")


def tiles(elements: int, tile_elements: int) -> tuple[int, ...]:
    """How a flat weight is cut: the sizes of its tiles, in order; they add up to `elements`.

    Always the fewest tiles of at most `tile_elements`: equal ones where their number divides the weight, so that one
    graph serves; else full ones and a smaller last one.
    """
    calls = -(-elements // tile_elements)
    if elements % calls == 0:
        return (elements // calls,) * calls
    return (tile_elements,) * (calls - 1) + (elements - (calls - 1) * tile_elements,)


def graph(elements: int, dtype: str) -> Graph:
    """The update of one tile. `dtype` is the compute dtype, of the gradient that comes in and the new weight."""
    vectors = (TensorSpec(name, FLOAT, (elements,)) for name in ("master", "exp_avg", "exp_avg_sq"))
    scalars = (TensorSpec(name, FLOAT, (1,)) for name in SCALARS)
    return Graph(
        name=f"adamw[{elements}]",
        catalog="adamw",
        function=FUNCTION,
        args=(*vectors, TensorSpec("grad", dtype, (elements,)), *scalars),
        settings={},
    )


def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """Entry point `adamw`. Needs no config: the table has every weight's shape."""
    layers = decoder_matrices(table).values()
    weights = Counter((short, rows * columns) for shapes in layers for short, (rows, columns) in shapes.items())
    calls = {(short, elements): tiles(elements, options.tile_elements) for short, elements in weights}
    sizes = sorted({size for cut in calls.values() for size in cut}, reverse=True)
    return Listing(
        tuple(graph(size, options.dtype) for size in sizes),
        tuple(
            Use(f"adamw[{size}]", short, weights[short, elements], cut.count(size))
            for (short, elements), cut in sorted(calls.items())
            for size in sorted(set(cut), reverse=True)
        ),
    )


def decoder_matrices(table: TensorTable) -> dict[str, dict[str, Shape]]:
    """The 2-D weights of each decoder layer: by the layer's prefix, shapes by the names within the layer."""
    layers: defaultdict[str, dict[str, Shape]] = defaultdict(dict)
    for tensor in table:
        match = _LAYER.search(tensor.name)
        if match and len(tensor.shape) == 2 and tensor.elements:
            layers[tensor.name[: match.end()]][tensor.name[match.end() :]] = tensor.shape
    return dict(layers)
