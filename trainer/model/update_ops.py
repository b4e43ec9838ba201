"""What a layer's update does on its device once its gradients are final. No torch.

Without state there, each matrix's accumulator is cut into AdamW's tiles and rounded; an update worker takes each tile
to the host, and uploads the new weight when all of it is written. With state there, AdamW's graph runs on each tile,
and the new tiles are joined to the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphcache.catalog import CatalogOptions
from graphcache.graph import TensorSpec
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import Weight, device_weights, parameter_shapes
from trainer.catalogs.adamw import SCALARS
from trainer.catalogs.adamw import graph as adamw
from trainer.catalogs.tiles import cast, cuts, join
from trainer.model.layer_ops import grad
from trainer.model.ops import Call, Download, Free, Op, Upload, View

STATE = ("master", "exp_avg", "exp_avg_sq")


def state(name: str, tile: int) -> tuple[str, ...]:
    """The names of the buffers of a tile's state."""
    return tuple(f"{part} {name} {tile}" for part in STATE)


class UpdateOps:
    """The update of one layer. A part is called by its graph's name."""

    def __init__(self, config: ModelConfig, options: CatalogOptions) -> None:
        self._options = options
        self._weights = device_weights(parameter_shapes(config))

    def offload(self) -> tuple[Op, ...]:
        """Frees weights and accumulators; then, by workers, downloads of the tiles and uploads of new weights."""
        matrices = [weight for weight in self._weights if len(weight.shape) > 1]
        cast_ = [op for weight in self._weights for op in self._pieces(weight)]
        taken = [Download(name) for weight in matrices for name in self._tiles(weight)]
        return self._drop(), *cast_, *taken, *(Upload(self._weight(weight)) for weight in self._weights)

    def resident(self) -> tuple[Op, ...]:
        """The same with the matrices' state on the device; vectors go over the host."""
        ops: list[Op] = [self._drop()]
        for weight in self._weights:
            if len(weight.shape) > 1:
                ops += self._update(weight)
            else:
                ops += [*self._pieces(weight), Upload(self._weight(weight))]
        return tuple(ops)

    def _drop(self) -> Op:
        return Free(tuple(weight.name for weight in self._weights))

    def _weight(self, weight: Weight) -> TensorSpec:
        return TensorSpec(weight.name, self._options.dtype, weight.shape)

    def _tiles(self, weight: Weight) -> list[str]:
        return [f"tile {weight.name} {i}" for i, _ in enumerate(cuts(weight, self._options))]

    def _pieces(self, weight: Weight) -> Iterator[Op]:
        """A vector's gradient to the host; a matrix's as rounded tiles."""
        if len(weight.shape) == 1:
            yield Download(grad(weight.name))
            return
        yield self._cut(weight)
        for i, (_, size) in enumerate(cuts(weight, self._options)):
            yield self._cast(weight, i, size)

    def _cut(self, weight: Weight) -> Op:
        sizes = [size for _, size in cuts(weight, self._options)]
        pieces = (TensorSpec(f"piece {i}", "float32", (size,)) for i, size in enumerate(sizes))
        return View(grad(weight.name), tuple(pieces))

    def _cast(self, weight: Weight, i: int, size: int) -> Op:
        tile = TensorSpec(f"tile {weight.name} {i}", self._options.dtype, (size,))
        return Call(cast(size, self._options.dtype).name, (f"piece {i}",), (tile,), frees=(f"piece {i}",))

    def _update(self, weight: Weight) -> Iterator[Op]:
        yield self._cut(weight)
        new = []
        for i, (_, size) in enumerate(cuts(weight, self._options)):
            yield self._cast(weight, i, size)
            old = (*state(weight.name, i), f"tile {weight.name} {i}")
            results = (
                *(TensorSpec(name, "float32", (size,)) for name in state(weight.name, i)),
                TensorSpec(f"new tile {i}", self._options.dtype, (size,)),
            )
            yield Call(adamw(size, self._options.dtype).name, (*old, *SCALARS), results, frees=old)
            new.append(f"new tile {i}")
        yield Call(join(weight, self._options).name, tuple(new), (self._weight(weight),), frees=tuple(new))


def vector_update(weight: TensorSpec) -> tuple[Op, ...]:
    """The final norm's: over the host."""
    return Free((weight.name,)), Download(grad(weight.name)), Upload(weight)


def table_update(chunks: Sequence[TensorSpec]) -> tuple[Op, ...]:
    """The head's: its accumulators go to the host, one after the other, and its new rows come back."""
    names = tuple(part.name for part in chunks)
    return Free(names), *(Download(grad(name)) for name in names), *(Upload(part) for part in chunks)
