"""What a step did and when, by lane: passes and waits of each device, its calls and copies, uploads ahead, updates."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from graphcache.process.chrome_trace import Span

MEASURED = "measured"


class StepTrace:
    """Spans from any thread. A thread's lane is the one it is in (`lane`), else what its name says."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._began = time.perf_counter()
        self._here = threading.local()

    @contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """What this thread does inside the block is on that lane."""
        before = self._lane
        self._here.lane = name
        try:
            yield
        finally:
            self._here.lane = before

    def add(self, name: str, began: float, ended: float) -> None:
        """Times of `time.perf_counter`."""
        self._add(self._lane, name, began, ended)

    def add_call(self, name: str, began: float, ended: float) -> None:
        """A call or a copy of a device: on a lane of its own beside the thread's, which has what they are part of."""
        self._add(f"{self._lane} calls", name, began, ended)

    def _add(self, lane: str, name: str, began: float, ended: float) -> None:
        self.spans.append(Span(MEASURED, lane, name, began - self._began, ended - began))

    @property
    def _lane(self) -> str:
        found: str | None = getattr(self._here, "lane", None)
        if found is not None:
            return found
        worker = re.fullmatch(r"update-(\d+)", threading.current_thread().name)
        return f"worker {worker[1]}" if worker else "main"
