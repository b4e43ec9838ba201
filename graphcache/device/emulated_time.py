"""The time that an emulated card's calls and copies take, spent asleep, so that schedules are timed without a card."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphcache.errors import UsageError
from graphcache.graph import Graph

# The compiler's estimate of a call's device time in ns; None where it gave none.
EstimateOf = Callable[[Graph], int | None]


class NoEstimateError(UsageError):
    """A graph's device time is to be emulated, and nobody has estimated it."""

    name = "no-estimate"


@dataclass(frozen=True)
class EmulatedTime:
    """What to spend, and whether anything is computed meanwhile.

    estimate_of:        of each graph, from its artifact or a manifest
    factor:             what an estimate is multiplied by
    link_bytes_per_sec: of a copy to or from a card; each direction carries one copy at a time
    arithmetic:         whether graphs are run; else every element of every result is 1
    """

    estimate_of: EstimateOf
    factor: float = 1.0
    link_bytes_per_sec: float = 20e9
    arithmetic: bool = True

    def call_secs(self, graph: Graph) -> float:
        """Raises NoEstimateError."""
        estimate_ns = self.estimate_of(graph)
        if estimate_ns is None:
            raise NoEstimateError(
                f"{graph.name} has no estimate of its device time", hint="leave out --emulated-time, or build the graph"
            )
        return estimate_ns * 1e-9 * self.factor

    def __str__(self) -> str:
        computed = "" if self.arithmetic else ", nothing is computed"
        return f"times are emulated: estimates x {self.factor:g}, {self.link_bytes_per_sec / 1e9:g} GB/s{computed}"


@contextmanager
def at_least(secs: float) -> Iterator[None]:
    """The block takes that long: what it does not need itself is slept."""
    end = time.perf_counter() + secs
    yield
    left = end - time.perf_counter()
    if left > 0:
        time.sleep(left)


class Link:
    """The two directions between the host and one card."""

    def __init__(self, bytes_per_sec: float) -> None:
        self._bytes_per_sec = bytes_per_sec
        self._directions = {"to": threading.Lock(), "from": threading.Lock()}

    @contextmanager
    def copy(self, direction: str, size_bytes: int) -> Iterator[None]:
        """Around a copy, `to` or `from` the card."""
        with self._directions[direction], at_least(size_bytes / self._bytes_per_sec):
            yield
