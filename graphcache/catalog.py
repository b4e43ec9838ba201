"""Catalogs: from a tensor table and a model's config to the graphs that a training run calls.

A catalog is a function named in the entry point group `graphcache.catalogs`, so that other packages can add theirs:

    def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing

It must not import torch: diff and the trainer's preflight call it on every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from graphcache.errors import UsageError
from graphcache.graph import Listing

if TYPE_CHECKING:
    from graphcache.shapes import TensorTable

GROUP = "graphcache.catalogs"


@dataclass(frozen=True)
class CatalogOptions:
    """Choices that enter signatures; the defaults are what `docs/results/` measured as best.

    tile_elements: an AdamW call covers at most this many elements of a weight
    sequence:      tokens in one sequence
    micro_batch:   sequences in one micro-batch
    dtype:         weights and activations on the device: `bfloat16` or `float32` (master state is always float32)
    """

    tile_elements: int = 8_650_752
    sequence: int = 512
    micro_batch: int = 1
    dtype: str = "bfloat16"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Catalog = Callable[["TensorTable", Mapping[str, Any] | None, CatalogOptions], Listing]


def names() -> list[str]:
    """The catalogs that are installed, sorted."""
    return sorted({e.name for e in entry_points(group=GROUP)})


def load(name: str) -> Catalog:
    """The catalog called `name`. Raises UsageError, listing the ones there are, for an unknown name."""
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            catalog: Catalog = entry.load()
            return catalog
    raise UsageError(f"no catalog is called {name!r}", hint=f"installed catalogs: {', '.join(names()) or 'none'}")


def list_graphs(
    only: Iterable[str],
    table: TensorTable,
    config: Mapping[str, Any] | None,
    options: CatalogOptions,
) -> Listing:
    """The listings of several catalogs as one, in the order of `only`."""
    listings = [load(name)(table, config, options) for name in only]
    return Listing(
        tuple(graph for listing in listings for graph in listing.graphs),
        tuple(use for listing in listings for use in listing.uses),
    )
