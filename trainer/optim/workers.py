"""Threads that update while the main thread computes, and how their errors come back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import torch

Job = Callable[[], None]
# Gets a job's name and its begin and end by `time.perf_counter`.
Observer = Callable[[str, float, float], None]

# How often a waiting main thread looks whether there is still somebody to wait for.
LOOK_SECS = 1.0
# How long `close` waits for the jobs that are running: far longer than an update takes, shorter than for ever.
CLOSE_SECS = 30.0


class Workers:
    """`count` threads that take jobs in the order in which they were submitted.

    The first error ends all of it: no job starts after it, and `submit` and `wait` raise it with its own traceback.
    Errors of jobs that were running at that moment are its consequences more often than not, and are dropped.
    """

    observer: Observer | None = None

    def __init__(self, count: int) -> None:
        assert count >= 1, count
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._jobs: deque[tuple[str, Job]] = deque()
        self._unfinished = 0
        self._busy_secs = 0.0
        self._error: BaseException | None = None
        self._closing = False
        # Daemons, so that a copy that hangs in a driver cannot keep the process from ending.
        self._threads = [threading.Thread(target=self._work, name=f"update-{n}", daemon=True) for n in range(count)]
        # A thread takes torch's number of threads, one for the process, when it first computes or asks. A worker sets
        # it to 1 for itself, and this thread would have that too if it had not asked before.
        torch.get_num_threads()
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, name: str = "update") -> None:
        """Have a worker run `job`; an observer hears of it by `name`. Raises the first error of an earlier one."""
        with self._changed:
            self._raise_error()
            assert not self._closing
            self._jobs.append((name, job))
            self._unfinished += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Until every job is done. Raises the first error as soon as there is one."""
        with self._changed:
            while self._unfinished and self._error is None:
                if not all(thread.is_alive() for thread in self._threads):
                    raise RuntimeError(f"an update worker is gone and {self._unfinished} updates are not done")
                self._changed.wait(LOOK_SECS)
            self._raise_error()

    def take_busy_secs(self) -> float:
        """Seconds that jobs ran, summed over the workers, since the last call."""
        with self._changed:
            taken, self._busy_secs = self._busy_secs, 0.0
            return taken

    def close(self) -> None:
        """Drop the jobs that have not begun and end the threads. Raises nothing, also when one of them hangs."""
        with self._changed:
            self._closing = True
            self._jobs.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_SECS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        # Copies of weights would have threads of their own for each worker otherwise, on CPUs that are all taken.
        torch.set_num_threads(1)
        while (next_ := self._next()) is not None:
            name, job = next_
            del next_
            began = time.perf_counter()
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:  # whatever ends a job must reach the main thread, SystemExit too
                error = raised
            del job  # what it holds must not live until the next one comes
            ended, observer = time.perf_counter(), self.observer
            if observer is not None:
                observer(name, began, ended)
            self._finished(ended - began, error)

    def _next(self) -> tuple[str, Job] | None:
        """The next job; None when there will be none."""
        with self._changed:
            while not self._jobs:
                if self._closing or self._error is not None:
                    return None
                self._changed.wait()
            return self._jobs.popleft()

    def _finished(self, secs: float, error: BaseException | None) -> None:
        with self._changed:
            self._unfinished -= 1
            self._busy_secs += secs
            if error is not None and self._error is None:
                self._error = error
                self._jobs.clear()
            self._changed.notify_all()
