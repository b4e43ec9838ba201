"""Proves what a cache holds: worker processes, the shortest proof first, each verdict kept at once.

An offline job like a build: what is interrupted goes on where it was. `graphcache.build.prover` is what a worker does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from graphcache.build.build import BuildOptions
from graphcache.build.pool import Answer, Death, Pool, Worker
from graphcache.build.scheduler import cannot_start
from graphcache.local.memo import Memo
from graphcache.process.scratch import scratch_folder
from graphcache.process.shown import secs_text
from graphcache.proof.cost import Work
from graphcache.proof.verdict import Verdict
from graphcache.runtime.versions import runtime_parts
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.verify.verdict import by_fusion, other_toolchain

# An executor reads the lowered graphs of its own compiler; torch says what the function means.
MUST_MATCH = ("furiosa-torch", "compiler-revision", "torch", "fusion")

# `proven`, `disproven`, `unproven`: by a verdict, an earlier one if `fresh` is not set. `skipped`: this machine cannot
# run it, or may not. `left`: the budget was used up. `failed`: the worker ended, or the function is another by now.
Ending = Literal["proven", "disproven", "unproven", "skipped", "left", "failed"]


@dataclass(frozen=True, kw_only=True)
class Proven:
    """How one entry ended. reason: for people; empty when it is proven. expected_secs: of one that is left."""

    entry: Entry
    ending: Ending
    reason: str
    verdict: Verdict | None = None
    fresh: bool = False
    expected_secs: float | None = None

    @classmethod
    def of(cls, entry: Entry, verdict: Verdict, *, fresh: bool) -> Proven:
        return cls(entry=entry, ending=verdict.state, reason=verdict.reason, verdict=verdict, fresh=fresh)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.entry.key.digest,
            "graph": self.entry.graph.name,
            "state": self.ending,
            "reason": self.reason,
            "fresh": self.fresh,
            "expected_secs": self.expected_secs,
            "proof": self.verdict and self.verdict.as_json(),
        }


class ProofListener(Protocol):
    """Is told what goes on. secs: what is expected, of one or of all that are left for all workers."""

    def planned(self, there: int, to_prove: int, secs: float, workers: int) -> None: ...

    def started(self, entry: Entry, secs: float) -> None: ...

    def finished(self, found: Proven, done: int, total: int, secs_left: float) -> None: ...


class Quiet:
    """A listener that says nothing."""

    def planned(self, there: int, to_prove: int, secs: float, workers: int) -> None:
        pass

    def started(self, entry: Entry, secs: float) -> None:
        pass

    def finished(self, found: Proven, done: int, total: int, secs_left: float) -> None:
        pass


def prove(
    store: LocalStore,
    entries: Sequence[Entry],
    memo: Memo,
    *,
    options: BuildOptions,
    budget_secs: float | None = None,
    again: bool = False,
    listener: ProofListener | None = None,
) -> list[Proven]:
    """How each entry ended, in the order given. The fusion of `options` is not looked at: each entry has its own.

    The functions that entries name are called: whoever takes entries from a store asks `may_be_called` first.

    budget_secs: nothing is started that should not end within so many seconds from now, and what has not ended by then
                 is stopped; None: all of it
    again:       also what has a verdict

    Raises ToolchainError where the vendor is not as it must be, StoreError when a verdict cannot be kept.
    """
    deadline = None if budget_secs is None else time.monotonic() + budget_secs
    found: dict[str, Proven] = {}
    for entry in entries:
        verdict = None if again else store.verdict(entry)
        if verdict is not None:
            found[entry.key.digest] = Proven.of(entry, verdict, fresh=False)
    todo = [entry for entry in entries if entry.key.digest not in found]
    for fusion, group in by_fusion(todo).items():
        toolchain = runtime_parts(fusion, memo)
        ours = []
        for entry in group:
            difference = other_toolchain(entry, toolchain, MUST_MATCH)
            if difference:
                found[entry.key.digest] = Proven(
                    entry=entry, ending="skipped", reason=f"another toolchain: {difference}"
                )
            else:
                ours.append(entry)
        if ours:
            job = _Job(store, ours, fusion, options, deadline, listener or Quiet())
            found.update((each.entry.key.digest, each) for each in job.run(len(found)))
    return [found[entry.key.digest] for entry in entries]


class _Job:
    """The proofs of one fusion."""

    def __init__(
        self,
        store: LocalStore,
        entries: Sequence[Entry],
        fusion: int,
        options: BuildOptions,
        deadline: float | None,
        listener: ProofListener,
    ) -> None:
        self._store, self._entries, self._fusion, self._options = store, entries, fusion, options
        self._deadline, self._listener = deadline, listener
        self._running: dict[Worker, Entry] = {}
        self._secs: dict[str, float] = {}
        # What proofs took over what they should have: this machine's share of the one that was measured.
        self._took = self._should = 0.0

    def run(self, there: int) -> Iterator[Proven]:
        jobs = min(self._options.jobs, len(self._entries))
        limits = replace(self._options, jobs=jobs).limits(len(self._entries))
        with ExitStack() as stack:
            scratch = stack.enter_context(scratch_folder())
            pool = Pool(jobs, fusion=self._fusion, limits=limits, scratch=scratch, command=self._options.worker)
            stack.callback(pool.close)
            queue = self._shortest_first(pool)
            self._listener.planned(there, len(queue), self._left(queue), jobs)
            done = 0
            while queue or self._running:
                yield from self._feed(pool, queue)
                for event in pool.wait() if queue or self._running else ():
                    entry = self._running.pop(event.worker, None)
                    if entry is None:
                        if not event.worker.revision:
                            raise cannot_start(event)
                        # An idle worker that died harmed nobody.
                        continue
                    ended = self._ended(entry, event)
                    done += 1
                    self._listener.finished(ended, done, len(self._entries), self._left(queue))
                    yield ended

    def _shortest_first(self, pool: Pool) -> list[Entry]:
        """What each should take, by a worker that has torch; one that cannot be told comes first, and fails soon."""
        pool.grow(1)
        while not pool.idle():
            for event in pool.wait():
                raise cannot_start(event)
        (worker,) = pool.idle()
        pool.send(worker, {"op": "work", "graphs": [entry.graph.as_json() for entry in self._entries]})
        works: Sequence[Any] = [None] * len(self._entries)
        while worker in pool.workers and worker.busy:
            for event in pool.wait():
                if isinstance(event, Answer) and "work" in event.value:
                    works = event.value["work"]
        for entry, work in zip(self._entries, works, strict=True):
            self._secs[entry.key.digest] = 0.0 if work is None else Work(*work).secs
        return sorted(self._entries, key=lambda entry: (self._secs[entry.key.digest], entry.graph.name))

    def _expected(self, entry: Entry) -> float:
        return self._secs[entry.key.digest] * (self._took / self._should if self._should else 1.0)

    def _left(self, queue: Sequence[Entry]) -> float:
        """Seconds for all workers; the last proof takes what it takes, however many are free."""
        secs = [self._expected(entry) for entry in (*queue, *self._running.values())]
        return max([sum(secs) / max(1, self._options.jobs), *secs], default=0.0)

    def _feed(self, pool: Pool, queue: list[Entry]) -> Iterator[Proven]:
        pool.grow(len(queue) + len(self._running))
        for worker in pool.idle():
            while queue and self._expected(queue[0]) > self._secs_to_deadline():
                entry = queue.pop(0)
                secs = self._expected(entry)
                yield Proven(
                    entry=entry,
                    ending="left",
                    reason=f"it should take {secs:.3g} s, more than is left",
                    expected_secs=secs,
                )
            if queue:
                entry = queue.pop(0)
                self._running[worker] = entry
                request = {"op": "prove", "store": str(self._store.root), "entry": entry.encode().decode()}
                pool.send(worker, {**request, "within_secs": None}, self._secs_to_deadline())
                self._listener.started(entry, self._expected(entry))

    def _secs_to_deadline(self) -> float:
        return math.inf if self._deadline is None else self._deadline - time.monotonic()

    def _ended(self, entry: Entry, event: Answer | Death) -> Proven:
        if isinstance(event, Death) and event.over_limit and self._secs_to_deadline() <= 0:
            took = secs_text(time.monotonic() - event.worker.since)
            return Proven(entry=entry, ending="left", reason=f"it had not ended after {took}, when the time was over")
        if isinstance(event, Death):
            return Proven(entry=entry, ending="failed", reason=event.cause)
        if "error" in event.value:
            return Proven(entry=entry, ending="failed", reason=event.value["error"]["message"])
        verdict = Verdict.decode(str(event.value["verdict"]).encode())
        self._store.record_verdict(verdict)
        self._took += verdict.secs
        self._should += self._secs[entry.key.digest]
        return Proven.of(entry, verdict, fresh=True)
