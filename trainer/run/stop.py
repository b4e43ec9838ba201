"""SIGTERM and SIGINT: at once while nothing would be lost; in training after the step, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from graphcache.process.command import Ended


class Stopped(Ended):
    """The run was asked to end."""

    name = "stopped"
    hint = "--resume goes on from the newest checkpoint, or from the beginning when there is none"


class StopRequest:
    """Whether, and by which signal, the run was asked to end.

    A signal raises Stopped in the main thread, except inside `deferred`: there it is remembered. A second SIGINT, from
    someone who does not want to wait, raises at once all the same; a second SIGTERM does not, since clusters repeat it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._deferring = False

    @contextmanager
    def installed(self) -> Iterator[StopRequest]:
        """Handle both signals inside the block; the main thread calls it."""
        previous = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Remember signals inside the block, which looks at `signal` where it can end."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        repeated = self.signal is not None and number == signal.SIGINT
        self.signal = number
        if repeated or not self._deferring:
            raise Stopped(number)
