"""The race on the memory type flag: graph calls in one thread, uploads in four, on an emulated card.

    python -m tests.device.race                    120 s and at least 50,000 of each, with the guard
    python -m tests.device.race --guard off        until the first error, or 100 graph calls

The flag is the vendor's own where its threads share it (PYTHONPATH=DIR, see tests/runtime/test_releases.py), else the
emulated one. Every upload is read back and every result compared, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from graphcache.artifact import Artifact
from graphcache.device.emulator import EmulatedCard
from graphcache.device.guard import Guard
from graphcache.device.guarded import GuardedBackend
from graphcache.graph import Graph
from graphcache.runtime import furiosa
from tests.device.example import compile_artifact, double_graph

UPLOADERS = 4
UPLOADED_ELEMENTS = 1 << 14  # 64 KiB of float32
# With the guard, uploads wait for calls beyond this, or a machine of two cores would do twenty of them for each call.
UPLOADS_A_CALL = 2
PAUSE_SECS = 0.0002
# With the guard, calls that are as short as they can be, for many of them. Without it, calls of 50 ms: the vendor's
# executor holds the GIL but for Python's own switches, every 5 ms, so other threads run several times in each of them.
SHORT, LONG = double_graph(1 << 10), double_graph(1 << 18)


@dataclass
class Outcome:
    """`errors` are what threads met; `left_bytes` what was counted for tensors at the end, which must be none."""

    flag: str
    guard: bool
    calls: int = 0
    uploads: int = 0
    errors: list[str] = field(default_factory=list)
    secs: float = 0.0
    left_bytes: int = 0


class Race:
    """One race of `graph` on `backend`. It ends at the first error, or when enough was done for long enough."""

    def __init__(
        self, backend: GuardedBackend, graph: Graph, outcome: Outcome, *, secs: float, at_least: int, at_most: int
    ) -> None:
        self.backend = backend
        self.graph = graph
        self.outcome = outcome
        self.secs, self.at_least, self.at_most = secs, at_least, at_most
        self._uploads = [0] * UPLOADERS
        self._stop = threading.Event()

    def run(self) -> Outcome:
        loaded = self.backend.load(self.graph)
        program_bytes = self.backend.bytes_in_use
        threads = [threading.Thread(target=self._guarded(self._upload), args=(i,)) for i in range(UPLOADERS)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        self._guarded(self._call)(loaded, start)
        self._stop.set()
        for thread in threads:
            thread.join()
        self.outcome.uploads = sum(self._uploads)
        self.outcome.secs = round(time.monotonic() - start, 1)
        self.outcome.left_bytes = self.backend.bytes_in_use - program_bytes
        return self.outcome

    def _call(self, loaded, start: float) -> None:  # type: ignore[no-untyped-def]
        host = torch.randn(self.graph.args[0].shape)
        x = self.backend.upload(host, "x")
        while not self._stop.is_set() and self.outcome.calls < self.at_most:
            (result,) = self.backend.call(loaded, [x])
            self._compare(self.backend.download(result), host * 2, f"result of call {self.outcome.calls}")
            self.backend.free(result)
            self.outcome.calls += 1
            if time.monotonic() - start >= self.secs and min(self.outcome.calls, sum(self._uploads)) >= self.at_least:
                break
        self.backend.free(x)

    def _upload(self, number: int) -> None:
        host = torch.randn(UPLOADED_ELEMENTS, generator=torch.Generator().manual_seed(number))
        while not self._stop.is_set():
            if self.outcome.guard and sum(self._uploads) > UPLOADS_A_CALL * self.outcome.calls + 100:
                time.sleep(PAUSE_SECS)
                continue
            buffer = self.backend.upload(host, f"weight of thread {number}")
            self._compare(self.backend.download(buffer), host, buffer.spec.name)
            self.backend.free(buffer)
            self._uploads[number] += 1

    def _compare(self, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        if not torch.equal(found.view(torch.int32), wanted.view(torch.int32)):
            raise AssertionError(f"{what} was read back with other bits")

    def _guarded(self, work):  # type: ignore[no-untyped-def]
        def run(*args: object) -> None:
            try:
                work(*args)
            except Exception as error:
                self.outcome.errors.append(f"{type(error).__name__}: {error}")
                self._stop.set()

        return run


def race(graph: Graph, *, guard: bool, secs: float, at_least: int, at_most: int = sys.maxsize) -> Outcome:
    artifact = artifact_of(graph)
    card = EmulatedCard(lambda graph: artifact)
    off = None if guard else Guard(card.name, card.pool_bytes, flag_is_shared=False)
    backend = GuardedBackend(card, off)
    outcome = Outcome("the vendor's" if card.flag is furiosa else "emulated", guard)
    try:
        return Race(backend, graph, outcome, secs=secs, at_least=at_least, at_most=at_most).run()
    finally:
        backend.close()


def artifact_of(graph: Graph) -> Artifact:
    with tempfile.TemporaryDirectory() as scratch:
        return compile_artifact(graph, Path(scratch))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guard", choices=("on", "off"), default="on")
    parser.add_argument("--secs", type=float, default=120.0)
    parser.add_argument("--at-least", type=int, default=50_000, help="of graph calls and of uploads")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.guard == "on":
        outcome = race(SHORT, guard=True, secs=options.secs, at_least=options.at_least)
    else:
        outcome = race(LONG, guard=False, secs=0.0, at_least=sys.maxsize, at_most=100)
    print(json.dumps(asdict(outcome)))
    return 1 if outcome.errors else 0


if __name__ == "__main__":
    sys.exit(main())
