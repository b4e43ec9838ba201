"""Worker processes (`graphcache.build.worker`): started, fed, watched, killed and replaced. One thread, no locks.

A worker that takes too long, holds too much memory or dies becomes a `Death`, with the cause and whether trying again
can help; its place is free again. Nothing of a worker outlives this process: see `graphcache.build.worker.die_with`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphcache.process.helper import TEMPORARY, helper_command, helper_environment
from graphcache.process.limits import resident_bytes
from graphcache.process.shown import bytes_text

COMMAND = helper_command("graphcache.build.worker")
# How often memory and time are looked at.
TICK_SECS = 0.2
# Loading torch and the vendor takes 3 s, on a busy network disk minutes.
START_SECS = 900.0
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one request may take before its worker is killed."""

    secs: float
    memory_bytes: int


@dataclass(frozen=True)
class Answer:
    """What a worker answered; `payload` are the bytes that its `sizes` announce."""

    worker: Worker
    value: Mapping[str, Any]
    payload: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class Death:
    """A worker that is gone. `retryable`: whether another one could succeed where it failed; `hint`: what may help;
    `over_limit`: whether it took more time or memory than the build gives a graph."""

    worker: Worker
    cause: str
    retryable: bool
    hint: str = "graphcache doctor"
    over_limit: bool = False


@dataclass(eq=False, kw_only=True)
class Worker:
    """One process. `busy` from its start until its first line, and from a request until its answer.

    log:     where the current request's output goes, and before the first one what the start printed
    revision: the compiler's, once it is ready
    """

    number: int
    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    since: float
    deadline: float
    revision: str = ""
    busy: bool = True
    buffer: bytearray = field(default_factory=bytearray)

    def take(self) -> tuple[Mapping[str, Any], tuple[bytes, ...]] | None:
        """The next whole answer in the buffer."""
        line, newline, _ = self.buffer.partition(b"\n")
        if not newline:
            return None
        value = json.loads(line)
        sizes = value.get("sizes", [])
        start = len(line) + 1
        if len(self.buffer) < start + sum(sizes):
            return None
        payload = []
        for size in sizes:
            payload.append(bytes(self.buffer[start : start + size]))
            start += size
        del self.buffer[:start]
        return value, tuple(payload)


class Pool:
    """At most `size` workers, with their folders in `scratch`. Close it: its workers end then at the latest."""

    def __init__(
        self, size: int, *, fusion: int, limits: Limits, scratch: Path, command: Sequence[str] = COMMAND
    ) -> None:
        self.size = size
        self.workers: list[Worker] = []
        self._fusion, self._limits, self._scratch, self._command = fusion, limits, scratch, tuple(command)
        self._selector = selectors.DefaultSelector()
        self._started = 0

    def grow(self, wanted: int) -> None:
        """Starts workers until there are `wanted`, or as many as there may be."""
        while len(self.workers) < min(wanted, self.size):
            self._start()

    def idle(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.busy]

    def send(self, worker: Worker, request: Mapping[str, Any], within_secs: float = math.inf) -> None:
        """Gives an idle worker a request; its output goes to the worker's log.

        within_secs: the worker is killed when it takes longer, as for the pool's own limit
        """
        assert not worker.busy, "a worker does one thing at a time"
        worker.log = worker.folder / "graph.log"
        worker.busy, worker.since = True, time.monotonic()
        worker.deadline = worker.since + min(self._limits.secs, within_secs)
        line = json.dumps({**request, "log": str(worker.log)}).encode() + b"\n"
        assert worker.process.stdin is not None
        # A worker that has just died is found by the next wait.
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(line)
            worker.process.stdin.flush()

    def wait(self, secs: float = TICK_SECS) -> list[Answer | Death]:
        """What happened within `secs`: returns as soon as something has. A worker's first line is no answer."""
        events: list[Answer | Death] = []
        for key, _ in self._selector.select(secs):
            events += self._read(key.data)
        for worker in list(self.workers):
            death = self._over_limit(worker)
            if death:
                events.append(self._bury(worker, death))
        return events

    def is_whole(self, worker: Worker) -> bool:
        """Whether the folders of a worker are still there: whoever cleans up old temporary files may take them."""
        return (worker.folder / TEMPORARY).is_dir()

    def retire(self, worker: Worker) -> None:
        """Ends a worker, if it has not ended; its place is free for another."""
        if worker in self.workers:
            self._kill(worker)

    def close(self) -> None:
        """Kills every worker; what they were doing is lost."""
        for worker in list(self.workers):
            self._kill(worker)
        self._selector.close()

    def _start(self) -> None:
        number, self._started = self._started, self._started + 1
        folder = self._scratch / f"worker-{number}"
        try:
            folder.mkdir()
        except FileNotFoundError:  # the pool's own folder was taken as well
            self._scratch.mkdir(mode=0o700)
            folder.mkdir()
        log = folder / "start.log"
        options = ("--fusion", str(self._fusion), "--scratch", str(folder), "--parent", str(os.getpid()))
        with log.open("wb") as output:
            process = subprocess.Popen(
                (*self._command, *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=helper_environment(folder),
                # A group of its own: Ctrl-C is for this process, which then kills the group, compiler's children too.
                start_new_session=True,
            )
        now = time.monotonic()
        worker = Worker(number=number, process=process, folder=folder, log=log, since=now, deadline=now + START_SECS)
        self.workers.append(worker)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _read(self, worker: Worker) -> Iterable[Answer | Death]:
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), _READ_BYTES)
        if not data:
            return [self._bury(worker, None)]
        worker.buffer += data
        taken = worker.take()
        if taken is None:
            return []
        worker.busy = False
        value, payload = taken
        if not worker.revision and "revision" in value:
            worker.revision = value["revision"]
            return []
        if value.get("last"):
            # It ends by itself, but could be taken for idle until then.
            self._kill(worker)
        return [Answer(worker, value, payload)]

    def _over_limit(self, worker: Worker) -> Death | None:
        """Why a worker has to be killed; None when it may go on. Idle ones are looked at too: they hold memory."""
        if worker.busy and time.monotonic() > worker.deadline:
            secs = f"{worker.deadline - worker.since:.3g} s"
            if not worker.revision:
                return Death(worker=worker, cause=f"not ready after {secs}", retryable=True)
            return Death(
                worker=worker,
                cause=f"not done after {secs}, the limit (--timeout)",
                retryable=True,
                hint="give it a longer --timeout",
                over_limit=True,
            )
        held, limit = resident_bytes(worker.process.pid), self._limits.memory_bytes
        if held > limit:
            cause = f"held {bytes_text(held)} of memory, the limit is {bytes_text(limit)} (--memory)"
            return Death(
                worker=worker,
                cause=cause,
                retryable=True,
                hint="give each worker more: a larger --memory, or fewer --jobs",
                over_limit=True,
            )
        return None

    def _bury(self, worker: Worker, death: Death | None) -> Death:
        """Ends a worker; how it ended says why, when nobody knows better."""
        if death is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It has closed its pipe; give it the time to say how it ends.
                worker.process.wait(timeout=5)
        code = worker.process.poll()
        self._kill(worker)
        cause, retryable = _ending(code)
        return death or Death(worker=worker, cause=cause, retryable=retryable)

    def _kill(self, worker: Worker) -> None:
        self.workers.remove(worker)
        assert worker.process.stdin is not None
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        worker.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()


# What the machine does to a process. A crash that is the compiler's own looks the same.
_SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (the kernel does that when memory is short)",
    signal.SIGABRT: " (so it ends itself when it gets no memory; its log says why)",
    signal.SIGBUS: " (so ends what reads a file of a full or failing disk)",
}


def _ending(code: int | None) -> tuple[str, bool]:
    """What an exit code says, and whether another try could end better."""
    if code is None or code >= 0:
        return f"the worker ended with exit code {code}", True
    name = signal.Signals(-code).name
    return f"the compiler's process was ended by {name}{_SIGNAL_HINTS.get(-code, '')}", True
