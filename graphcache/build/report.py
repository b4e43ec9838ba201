"""What a build tells: how each graph ended, and, while it runs, what is going on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from graphcache.costs import Expected
from graphcache.graph import Graph
from graphcache.plan import PlanItem
from graphcache.store.base import Entry, Failure

# `ready`: was there. `same program`: its source was new, its program was there. `compiled`: by this build.
# `elsewhere`: by another build, meanwhile. `failed`: it has no artifact, and `trouble` says why.
State = Literal["ready", "same program", "compiled", "elsewhere", "failed"]


@dataclass(frozen=True)
class Trouble:
    """Why a graph has no artifact.

    log:       what its compiler printed, relative to the store's folder; empty when that could not be kept
    retryable: whether the same compile could succeed
    """

    cause: str
    log: str
    retryable: bool

    @classmethod
    def of(cls, failure: Failure) -> Trouble:
        return cls(failure.cause, failure.log, not failure.is_final)


@dataclass(frozen=True)
class Outcome:
    """How one graph ended: with an entry, or in trouble. `item` says why there was something to do."""

    item: PlanItem
    state: State
    entry: Entry | None
    trouble: Trouble | None = None

    @property
    def graph(self) -> Graph:
        return self.item.graph

    def as_json(self) -> dict[str, Any]:
        return {
            "graph": self.graph.name,
            "catalog": self.graph.catalog,
            "state": self.state,
            "why": self.item.reason,
            "way": self.item.made.name,
            "calls": self.item.calls,
            "refused": [asdict(each) for each in self.item.refused],
            "key": self.entry and self.entry.key.digest,
            "program": self.entry and self.entry.program,
            "artifact": self.entry and self.entry.artifact_digest,
            "size_bytes": self.entry and self.entry.size_bytes,
            "wall_secs": self.entry and self.entry.cost.wall_secs,
            "cpu_secs": self.entry and self.entry.cost.cpu_secs,
            "peak_rss_bytes": self.entry and self.entry.cost.peak_rss_bytes,
            "estimate_ns": self.entry and self.entry.facts.estimate_ns,
            "proof": self.item.verdict and self.item.verdict.as_json(),
            "trouble": self.trouble and asdict(self.trouble),
        }


@dataclass(frozen=True)
class Report:
    """A finished build. `outcomes` are in the order of the graphs that were given."""

    outcomes: tuple[Outcome, ...]
    toolchain: Mapping[str, str]
    wall_secs: float

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.state == "failed")

    def count(self, state: State) -> int:
        return sum(outcome.state == state for outcome in self.outcomes)


@dataclass(frozen=True)
class Running:
    """A graph that a worker has: since how long, and how long it is expected to take."""

    graph: Graph
    secs: float
    expected: Expected | None


class Listener(Protocol):
    """Is told what a build does, in its thread. The one that is given prints; others need do nothing."""

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        """The plan, what the graphs that are to be compiled are expected to take, how many workers there will be."""

    def started(self, graph: Graph, expected: Expected | None) -> None: ...

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        """The compiler refused the way of `item`; the graph's next one, `following`, is taken."""

    def elsewhere(self, graph: Graph) -> None:
        """Another process is compiling it; this build waits for that."""

    def finished(self, outcome: Outcome) -> None: ...

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        """About five times a second: what runs, and what no worker has taken yet."""


class Silent:
    """A listener that says nothing."""

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        pass

    def started(self, graph: Graph, expected: Expected | None) -> None:
        pass

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        pass

    def elsewhere(self, graph: Graph) -> None:
        pass

    def finished(self, outcome: Outcome) -> None:
        pass

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        pass
