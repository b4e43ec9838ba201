"""Cuts gradients into AdamW's tiles, and joins updated tiles to weights, on the device that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, DeviceBackend, LoadedGraph
from trainer.architecture.parameters import Weight
from trainer.catalogs.tiles import cast, cuts, join


class TileRunner:
    """The tile graphs of one device for these weights; vectors are left out, the host updates them."""

    def __init__(self, backend: DeviceBackend, weights: Iterable[Weight], options: CatalogOptions) -> None:
        self.backend = backend
        self._options = options
        self._weights = [weight for weight in weights if len(weight.shape) > 1]
        self._casts: dict[int, LoadedGraph] = {}
        self._joins: dict[str, LoadedGraph] = {}

    def load(self) -> None:
        """Load the graphs. Raises MissingGraphsError when the cache lacks one."""
        options = self._options
        for weight in self._weights:
            self._joins[weight.name] = self.backend.load(join(weight, options))
            for _, size in cuts(weight, options):
                if size not in self._casts:
                    self._casts[size] = self.backend.load(cast(size, options.dtype))

    def cut(self, weight: Weight, total: Buffer) -> Iterator[tuple[str, Buffer]]:
        """A matrix's accumulator, float32, as each parameter's flat tiles, in order, in the compute dtype.

        Takes it; the tiles are the caller's to free.
        """
        found = cuts(weight, self._options)
        for (name, size), piece in zip(found, self.backend.cut(total, [(size,) for _, size in found]), strict=True):
            (tile,) = self.backend.call(self._casts[size], (piece,))
            self.backend.free(piece)
            yield name, tile

    def join(self, weight: Weight, pieces: Sequence[Buffer]) -> Buffer:
        """Its parameters' flat tiles, in order, of the compute dtype, as one matrix. Frees the tiles."""
        (matrix,) = self.backend.call(self._joins[weight.name], pieces)
        self.backend.free(*pieces)
        return matrix
