"""Cuts gradients into AdamW's tiles and makes weights of them again, on the device that they are on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from graphcache.catalog import CatalogOptions
from trainer.catalogs.adamw import tiles
from trainer.catalogs.tiles import cast, join
from trainer.device.base import Buffer, DeviceBackend, LoadedGraph


class TileRunner:
    """The tile graphs of one device, for parameters of `shapes`; vectors are left out, the host updates them."""

    def __init__(self, backend: DeviceBackend, shapes: Iterable[tuple[int, ...]], options: CatalogOptions) -> None:
        self.backend = backend
        self._options = options
        self._shapes = sorted({shape for shape in shapes if len(shape) > 1})
        self._casts: dict[int, LoadedGraph] = {}
        self._joins: dict[tuple[int, ...], LoadedGraph] = {}

    def load(self) -> None:
        """Load the graphs. Raises MissingGraphsError when the cache lacks one."""
        dtype = self._options.dtype
        for shape in self._shapes:
            sizes = self._sizes(math.prod(shape))
            self._joins[shape] = self.backend.load(join(shape, sizes, dtype))
            for size in sizes:
                if size not in self._casts:
                    self._casts[size] = self.backend.load(cast(size, dtype))

    def cut(self, total: Buffer) -> Iterator[Buffer]:
        """A matrix's accumulator, float32, as flat tiles in the policy's dtype, the caller's to free. Takes it."""
        sizes = self._sizes(total.spec.elements)
        for piece in self.backend.cut(total, sizes):
            (tile,) = self.backend.call(self._casts[piece.spec.elements], (piece,))
            self.backend.free(piece)
            yield tile

    def join(self, shape: tuple[int, ...], pieces: Sequence[Buffer]) -> Buffer:
        """Flat tiles of the policy's dtype as one matrix of `shape`. Frees the tiles."""
        (weight,) = self.backend.call(self._joins[shape], pieces)
        self.backend.free(*pieces)
        return weight

    def _sizes(self, elements: int) -> tuple[int, ...]:
        return tiles(elements, self._options.tile_elements)
