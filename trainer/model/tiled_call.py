"""One call of a graph as several of another, on views of its arguments: row tiles.

Which argument is cut and what becomes of the results is in the way (`graphcache.way`); nothing here knows a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from graphcache.device.base import Buffer, DeviceBackend, LoadedGraph
from graphcache.graph import Combined, Way


class TiledCall:
    """Calls of `loaded`, which is `way`'s graph; `others` are the loaded graphs that join and sum, by name."""

    def __init__(
        self, backend: DeviceBackend, loaded: LoadedGraph, way: Way, others: Mapping[str, LoadedGraph]
    ) -> None:
        self._backend, self._loaded, self._way, self._others = backend, loaded, way, others
        self._carried = {each.argument: place for place, each in enumerate(way.results) if each.how == "carry"}

    def run(self, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """The results of the whole graph. Frees no argument; holds a result and its tiles at the same time."""
        so_far: list[list[Buffer]] = [[] for _ in self._way.results]
        with ExitStack() as lent:
            tiles = [lent.enter_context(self._tiles(place, arg)) for place, arg in enumerate(args)]
            for call in range(self._way.calls):
                results = self._backend.call(self._loaded, self._arguments(call, args, tiles, so_far))
                for found, result, combined in zip(so_far, results, self._way.results, strict=True):
                    self._take(found, result, combined)
        return tuple(
            self._join(found, combined) if combined.how == "join" else found[0]
            for found, combined in zip(so_far, self._way.results, strict=True)
        )

    def _tiles(self, place: int, arg: Buffer) -> AbstractContextManager[tuple[Buffer, ...]]:
        """An argument's rows, a tile a call; none for one that every call takes whole."""
        shape = self._way.graph.args[place].shape
        return nullcontext(()) if arg.spec.shape == shape else self._backend.views(arg, [shape] * self._way.calls)

    def _arguments(
        self, call: int, args: Sequence[Buffer], tiles: Sequence[Sequence[Buffer]], so_far: Sequence[Sequence[Buffer]]
    ) -> list[Buffer]:
        found = [tile[call] if tile else arg for arg, tile in zip(args, tiles, strict=True)]
        if call:
            for argument, place in self._carried.items():
                assert argument is not None
                found[argument] = so_far[place][0]
        return found

    def _take(self, found: list[Buffer], result: Buffer, combined: Combined) -> None:
        """Adds a call's result to those before."""
        before = found.copy()
        if combined.how == "join" or not before:
            found.append(result)
            return
        if combined.how == "sum":
            assert combined.graph is not None
            (found[0],) = self._backend.call(self._others[combined.graph.name], (*before, result))
            self._backend.free(result)
        else:
            found[0] = result
        self._backend.free(*before)

    def _join(self, tiles: list[Buffer], combined: Combined) -> Buffer:
        assert combined.graph is not None
        flat = [piece for tile in tiles for piece in self._backend.cut(tile, [(tile.spec.elements,)])]
        (whole,) = self._backend.call(self._others[combined.graph.name], flat)
        self._backend.free(*flat)
        return whole
