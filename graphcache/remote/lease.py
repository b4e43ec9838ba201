"""Leases: who compiles what now, seen by builders on other hosts. They save work, and never decide what is right.

A lease is a file `leases/<key digest>/<generation>.json` that its holder writes anew every few seconds. Whoever meets
one watches it: one that did not change for LEASE_SECS by the watcher's own clock is its holder's no more, so clocks
need not agree, and no lock is cleared by hand. It is taken over by making the next generation's file, which only one
can, as only one can make the first. A process id would be the same in two containers: a holder is a random number.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from graphcache.errors import CorruptError, UsageError
from graphcache.remote.files import Files
from graphcache.remote.url import RemoteError
from graphcache.store import records

VARIABLE = "GRAPHCACHE_LEASE_SECS"
LEASE_SECS = 60.0
# A holder writes so many times in that; and waiting builders look twice as often.
BEATS = 6
FORMAT = "graphcache-lease-1"
LIMIT_BYTES = 1 << 14


@dataclass(frozen=True)
class Seen:
    """What a watched lease held, and since when by our own clock it has."""

    generation: int
    data: bytes | None
    since_secs: float


class Leases:
    """The leases in a remote, as one builder holds and watches them. Safe to use from several threads."""

    def __init__(self, files: Files, secs: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.secs = lease_secs() if secs is None else secs
        self._files, self._clock = files, clock
        self._holder = os.urandom(16).hex()
        self._beat = 0
        self._held: dict[str, int] = {}
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def poll_secs(self) -> float:
        return self.secs / (2 * BEATS)

    def take(self, key: str) -> bool:
        """Whether the lease of a key digest is ours now. A remote that does not answer cannot be asked, so it is."""
        try:
            taken = self._files.run(self._take(key))
        except RemoteError:
            return True
        if taken:
            self._keep_beating()
        return taken

    def release(self, key: str) -> None:
        """Ends our lease; what cannot be removed runs out."""
        with self._lock:
            generation = self._held.pop(key, None)
        if generation is None:
            return
        try:
            self._files.run(self._remove(key, generation))
        except RemoteError:
            return

    async def _take(self, key: str) -> bool:
        found = await self._newest(key)
        if found is None:
            return await self._make(key, 0)
        generation, data = found
        before = self._seen.get(key)
        if before is None or (before.generation, before.data) != (generation, data):
            self._seen[key] = Seen(generation, data, self._clock())
            return False
        if self._clock() - before.since_secs < self.secs:
            return False
        return await self._make(key, generation + 1)

    async def _make(self, key: str, generation: int) -> bool:
        if not await self._files.put(_name(key, generation), self._record(), new=True):
            return False
        self._seen.pop(key, None)
        with self._lock:
            self._held[key] = generation
        return True

    async def _newest(self, key: str) -> tuple[int, bytes | None] | None:
        """The newest generation's number and bytes; a damaged or vanished file is one that never changes."""
        numbers = [_generation(name) for name in await self._files.names(f"leases/{key}")]
        known = [number for number in numbers if number is not None]
        watched = self._seen.get(key)
        # A listing may lag behind, or not be there: the first one, and the one that was seen last, are asked for.
        candidates = {*known, 0, *([watched.generation] if watched else [])}
        for number in sorted(candidates, reverse=True):
            try:
                data = await self._files.get(_name(key, number), LIMIT_BYTES)
            except CorruptError:
                return number, None
            if data is not None or number in known:
                return number, data
        return None

    async def _remove(self, key: str, generation: int) -> None:
        for number in range(generation, -1, -1):
            await self._files.delete(_name(key, number))

    def _record(self) -> bytes:
        self._beat += 1
        # For people who look; nothing reads it.
        return records.seal(FORMAT, {"holder": self._holder, "beat": self._beat, "host": socket.gethostname()})

    def _keep_beating(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat_on, name="leases", daemon=True)
                self._thread.start()

    def _beat_on(self) -> None:
        """Until nothing is held any more."""
        while True:
            time.sleep(self.secs / BEATS)
            with self._lock:
                held = dict(self._held)
                if not held:
                    self._thread = None
                    return
            try:
                for key, generation in held.items():
                    self._files.run(self._write_again(key, generation))
            except RemoteError:
                continue

    async def _write_again(self, key: str, generation: int) -> None:
        await self._files.put(_name(key, generation), self._record(), new=False)
        if key not in self._held:
            # Released meanwhile: it must not come back.
            await self._files.delete(_name(key, generation))


def lease_secs() -> float:
    """How long a lease that does not change is its holder's. Raises UsageError."""
    text = os.environ.get(VARIABLE, "")
    try:
        found = float(text) if text else LEASE_SECS
    except ValueError:
        found = math.nan
    if not 0.1 <= found <= 86_400:
        raise UsageError(f"{VARIABLE} is {text!r}, not a number of seconds from 0.1 to 86400")
    return found


def _name(key: str, generation: int) -> str:
    return f"leases/{key}/{generation}.json"


def _generation(name: str) -> int | None:
    stem = PurePosixPath(name).stem
    return int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 9 else None
