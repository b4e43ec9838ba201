"""Seconds of each phase of a step, summed over the threads that devices have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from trainer.step.trace import StepTrace


class Clock:
    """Adds up what `phase` measures; phases of a thread are not nested. Any thread. `trace` gets each of them too."""

    def __init__(self, trace: StepTrace | None = None) -> None:
        self.trace = trace
        self.began = time.perf_counter()
        self.secs: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            with self._lock:
                self.secs[name] = self.secs.get(name, 0.0) + ended - began
            if self.trace is not None:
                self.trace.add(name, began, ended)

    def lane(self, name: str) -> AbstractContextManager[None]:
        """Where a trace shows what this thread does inside the block."""
        return nullcontext() if self.trace is None else self.trace.lane(name)

    @property
    def total_secs(self) -> float:
        """Since the clock was made."""
        return time.perf_counter() - self.began
