"""Seconds of each phase of a step, summed over the threads that devices have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up what `phase` measures; phases of a thread are not nested. Any thread."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.secs: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.secs[name] = self.secs.get(name, 0.0) + time.perf_counter() - began

    @property
    def total_secs(self) -> float:
        """Since the clock was made."""
        return time.perf_counter() - self.began
