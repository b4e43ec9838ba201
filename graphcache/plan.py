"""What is there and what is missing: each graph with its program, its artifact, and the reason when it has none.

Reading only: nothing is exported, compiled or written here (a damaged object that is met on the way is quarantined, as
by any look-up). The reason is recorded where it is decided.

A graph with several ways (`graphcache.way`) has an item of one of them. A builder takes the first that was not refused,
so that what it builds depends on no other build; a trainer takes the best that is there.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from graphcache.errors import headline
from graphcache.graph import Graph, Way
from graphcache.key import Key, parts_of
from graphcache.proof.verdict import Verdict
from graphcache.source.hash import SourceHash, SourceHashes
from graphcache.store.base import Entry, Failure, Store, Wanted
from graphcache.store.find import Miss, find
from graphcache.store.programs import Programs, question_digest
from graphcache.way import ways_of

_log = logging.getLogger(__name__)

# `aten.mm.default at /home/me/graphs.py:49 in f`, and any other absolute path.
_PLACE = re.compile(r" at /\S+:\d+ in \w+")
_PATH = re.compile(r"(?<![\w.])/[\w.-][^\s:;,)'\"]*")
State = Literal["ready", "missing", "failed", "disproven", "unknown"]
# `first`: the first way that was neither refused nor disproven. `best`: of those that the store has a proven one before
# others, then the quickest by the compiler's estimate of all calls; else as `first`.
Choice = Literal["first", "best"]


# Estimates within this factor of each other are equal.
NEAR = 1.02


@dataclass(frozen=True)
class Refused:
    """A way that was passed over: the name of its graph, and the cause in a line."""

    graph: str
    cause: str

    def __str__(self) -> str:
        return f"{self.graph} is refused: {self.cause}"


@dataclass(frozen=True, kw_only=True)
class PlanItem:
    """One graph.

    state:   `ready`: its artifact is in the store. `missing`: it is not. `failed`: nor could it be, the compiler
             refused this very key before. `disproven`: it is in the store and computes the wrong thing, so nothing may
             use it. `unknown`: nobody remembers its program, so it has to be exported first.
    reason:  why it is not ready, for people; empty when it is
    miss:    the kind of that reason; None when it is ready, or torch is not installed
    key:     what it is compiled under by the toolchain that was given; None while its program is unknown
    entry:   the store's, when it is ready; its key may have parts that only a builder sees besides those of `key`
    failure: the last failed compile of `key`, whether it is worth another try or not
    verdict: on the artifact of `entry`, or on the one that is disproven
    way:     the way that all of this is about; None for the graph itself
    refused: the ways before it, and why it is none of them
    """

    graph: Graph
    source: SourceHash
    state: State
    reason: str
    miss: Miss | None = None
    key: Key | None = None
    entry: Entry | None = None
    failure: Failure | None = None
    verdict: Verdict | None = None
    way: Way | None = None
    refused: tuple[Refused, ...] = ()

    @property
    def program(self) -> str | None:
        return None if self.key is None else self.key.program

    @property
    def made(self) -> Graph:
        """What is compiled for it."""
        return self.graph if self.way is None else self.way.graph

    def with_made(self, graph: Graph) -> PlanItem:
        """The same with another graph that is compiled for it: one that has its settings now."""
        if self.way is None:
            return replace(self, graph=graph)
        return replace(self, way=replace(self.way, graph=graph))

    @property
    def calls(self) -> int:
        """How many calls of `made` replace one call of the graph."""
        return 1 if self.way is None else self.way.calls

    @property
    def is_out(self) -> bool:
        """Whether the compiler refused it, or what it made is wrong."""
        return self.state in ("failed", "disproven")

    @property
    def out_cause(self) -> str:
        """Why it is not taken; empty where nothing speaks against it."""
        if self.failure is not None:
            return self.failure.cause
        return self.reason if self.state == "disproven" else ""

    @property
    def needs(self) -> tuple[Graph, ...]:
        """What is called besides `made`."""
        return () if self.way is None else self.way.needs

    @property
    def note(self) -> str:
        """For people, what is unusual about its way; empty for the graph itself."""
        words = ([] if self.way is None else [f"as {self.way}"]) + [str(each) for each in self.refused]
        return "; ".join(words)

    @property
    def is_proven(self) -> bool:
        return self.verdict is not None and self.verdict.state == "proven"

    @property
    def estimate_ns(self) -> float:
        """The compiler's estimate of device time for all calls; inf where there is none."""
        estimate_ns = None if self.entry is None else self.entry.facts.estimate_ns
        return math.inf if estimate_ns is None else estimate_ns * self.calls


def plan(
    graphs: Iterable[Graph],
    *,
    sources: SourceHashes,
    programs: Programs,
    toolchain: Mapping[str, str],
    store: Store,
    choice: Choice = "first",
    only: Mapping[str, Way] | None = None,
) -> list[PlanItem]:
    """One item a graph, in the order given; then one for each graph that their ways need besides.

    toolchain: the fields of the key that this machine sees
    only:      ways by the names of their graphs: no other is looked at

    What `store` lacks it is asked to bring from where it may look further: first programs, then artifacts, all at once.
    Raises SourceError when a graph's source cannot be read.
    """
    return Planner(
        sources=sources, programs=programs, toolchain=toolchain, store=store, choice=choice, only=only or {}
    ).items(graphs)


@dataclass(frozen=True, kw_only=True)
class Planner:
    """What `plan` needs to know; a build asks it again when a way was refused."""

    sources: SourceHashes
    programs: Programs
    toolchain: Mapping[str, str]
    store: Store
    choice: Choice
    only: Mapping[str, Way]

    def items(self, graphs: Iterable[Graph]) -> list[PlanItem]:
        """As `plan`."""
        items = self._brought([self.item(graph) for graph in graphs])
        names = {item.graph.name for item in items}
        needed = {need.name: need for item in items for need in item.needs if need.name not in names}
        items += self._brought([self.item(need) for need in needed.values()])
        for item in items:
            _log.debug("%s %s", "hit " if item.entry else "miss", _said(item))
        return items

    def _brought(self, items: list[PlanItem]) -> list[PlanItem]:
        """The items again after the store looked further for what they lack: programs first, then artifacts."""
        torch = self.toolchain.get("torch")
        if torch and self.store.bring_answers(
            [question_digest(each.source.digest, each.made, torch) for each in self._lacking(items) if each.key is None]
        ):
            items = [self.item(item.graph) if item.entry is None else item for item in items]
        lacking = [self.wanted(each) for each in self._lacking(items) if each.key is not None]
        if self.store.bring(lacking):
            items = [self.item(item.graph) if item.entry is None else item for item in items]
        return items

    def _lacking(self, items: Iterable[PlanItem]) -> Iterator[PlanItem]:
        """Items for graphs that are not in the store: the chosen way of each, or every way where any will do."""
        for item in items:
            if item.entry is None and self.choice == "first":
                yield item
            elif item.entry is None:
                yield from (self._of_way(item.graph, way) for way in self._ways(item.graph))

    def wanted(self, item: PlanItem) -> Wanted:
        """What is looked for when `item` needs an artifact."""
        assert item.key is not None
        return Wanted(item.key, parts_of(self.toolchain, item.made.settings))

    def _ways(self, graph: Graph) -> tuple[Way, ...]:
        return (self.only[graph.name],) if graph.name in self.only else ways_of(graph)

    def item(self, graph: Graph, skip: Collection[str] = ()) -> PlanItem:
        """The item of a graph by the first or the best of its ways. `skip`: names of ways' graphs not to be looked at
        unless there are no others: they were refused just now."""
        items: list[PlanItem] = []
        for way in self._ways(graph):
            items.append(self._of_way(graph, way))
            if self.choice == "first" and not items[-1].out_cause and way.graph.name not in skip:
                break
        chosen = (self._best(items) if self.choice == "best" else None) or _first(items, skip)
        before = items[: items.index(chosen)]
        return replace(chosen, refused=tuple(_refused(each) for each in before if each.out_cause))

    def of_program(self, item: PlanItem, program: str) -> PlanItem:
        """The item again now that the program of its way is known."""
        key = Key.of(program, self.toolchain, item.made.settings)
        found = find(self.store, program, parts_of(self.toolchain, item.made.settings))
        if found.entry is not None:
            verdict = self.store.verdict(found.entry)
            return replace(
                item, state="ready", reason="", miss=None, key=key, entry=found.entry, failure=None, verdict=verdict
            )
        if found.disproven is not None:
            return replace(
                item, state="disproven", reason=found.disproven.text, miss=found.miss, key=key, verdict=found.disproven
            )
        failure = self.store.failure(key)
        if failure is not None and failure.is_final:
            reason = f"failed before: {headline(failure.cause)}"
            return replace(item, state="failed", reason=reason, miss="refused", key=key, entry=None, failure=failure)
        return replace(
            item, state="missing", reason=found.reason, miss=found.miss, key=key, entry=None, failure=failure
        )

    def _best(self, items: list[PlanItem]) -> PlanItem | None:
        """The quickest that is there, proven if there is any such, with what it needs besides; of equals the first."""
        ready = [item for item in items if item.entry is not None]
        whole = [item for item in ready if all(self._of_way(need, Way(need)).entry for need in item.needs)] or ready
        proven = [item for item in whole if item.is_proven] or whole
        return quickest((item, item.estimate_ns) for item in proven)

    def _of_way(self, graph: Graph, way: Way) -> PlanItem:
        made = way.graph
        source = self.sources.of(made.function)
        item = PlanItem(graph=graph, source=source, state="unknown", reason="", way=None if made is graph else way)
        torch = self.toolchain.get("torch")
        if torch is None:
            return replace(item, reason="torch is not installed, so its program cannot be told")
        program = self.programs.known(source.digest, made, torch)
        if program is None:
            return replace(item, reason="this source was not exported yet", miss="source")
        return self.of_program(item.with_made(self.programs.settled(source.digest, made, torch)), program)


def quickest(items: Iterable[tuple[PlanItem, float]]) -> PlanItem | None:
    """The item of the least nanoseconds; of those within 2 % of it, which no estimate tells apart, the one that was
    compiled soonest. None for no items."""
    listed = list(items)
    least_ns = min((estimate_ns for _, estimate_ns in listed), default=0.0)
    near = (item for item, estimate_ns in listed if estimate_ns <= least_ns * NEAR)
    return min(near, key=lambda item: item.entry.cost.wall_secs if item.entry else math.inf, default=None)


def _said(item: PlanItem) -> str:
    if item.entry is None or item.key is None:
        return f"{item.graph.name}: {item.reason}"
    return f"{item.made.name}: artifact {item.entry.artifact_digest}, key {item.key.digest}"


def _first(items: list[PlanItem], skip: Collection[str]) -> PlanItem:
    """The first that is there or can be tried. What failed for a reason that may pass, as a time limit, is tried again
    unless a later one is there."""
    left = [item for item in items if item.made.name not in skip] or items[:1]
    open_ = [item for item in left if not item.is_out]
    there = any(item.entry is not None for item in open_)
    return next((item for item in open_ if item.failure is None or not there), left[0])


def _refused(item: PlanItem) -> Refused:
    return Refused(item.made.name, cause_line(item.out_cause))


def cause_line(cause: str) -> str:
    """The cause of a failure in a line that may stand in a manifest: without the places that a compiler adds, which
    name a machine's folders."""
    return headline(_PATH.sub("...", _PLACE.sub("", cause)))
