"""Compiles more ways of each graph than a build does, so that whoever takes the best finds a quicker one.

A compile happens once; its program runs millions of times. The graphs with the most device time come first. What is
interrupted goes on where it was: artifacts, failures and verdicts are kept as a build and `prove` keep them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from graphcache.build.build import BuildOptions, build
from graphcache.build.prove import prove
from graphcache.build.report import Listener, Outcome
from graphcache.costs import Costs
from graphcache.graph import Graph
from graphcache.local.memo import Memo
from graphcache.plan import Choice, PlanItem, plan, quickest
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs

# No way is given up sooner: a compile of seconds has a spread of its own.
LEAST_SECS = 60.0


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """One graph.

    weight:  calls of it in a step, for one micro-batch
    before:  what a build makes; without an entry where nothing compiles
    after:   what a trainer takes now
    refused: ways that do not compile, or took too long, with the cause
    left:    ways that were not tried, for want of time
    """

    weight: int
    before: PlanItem
    after: PlanItem
    refused: tuple[str, ...]
    left: int

    @property
    def graph(self) -> Graph:
        return self.before.graph

    @property
    def share(self) -> float:
        """Device time of now by that of before, by the compiler's estimate; NaN where there is none."""
        known = math.isfinite(self.before.estimate_ns) and math.isfinite(self.after.estimate_ns)
        return self.after.estimate_ns / self.before.estimate_ns if known and self.before.estimate_ns else math.nan

    def as_json(self) -> dict[str, Any]:
        return {
            "graph": self.graph.name,
            "calls_a_step": self.weight,
            "before": _item_json(self.before),
            "after": _item_json(self.after),
            "refused": list(self.refused),
            "left": self.left,
        }


class TuneListener(Protocol):
    """Is told what goes on. limit_secs: of one compile."""

    def trying(self, graph: Graph, ways: Sequence[Graph], limit_secs: float) -> None: ...

    def tried(self, outcomes: Sequence[Outcome]) -> None: ...

    def proving(self, graphs: Sequence[str]) -> None: ...


def tune(
    graphs: Sequence[Graph],
    weights: Mapping[str, int],
    store: LocalStore,
    memo: Memo,
    *,
    programs: Programs,
    options: BuildOptions,
    over: float,
    listener: TuneListener,
    first: Listener | None = None,
    budget_secs: float | None = None,
    costs: Costs | None = None,
) -> list[Tuned]:
    """Builds `graphs`, then their other ways, then proves the quickest. One result a graph, in the order given.

    weights:     by names of graphs: calls in a step
    first:       is told of the build of the first ways
    over:        a way is given up when its compile takes so many times what that of the graph's first way took
    budget_secs: nothing is started, and what runs is stopped, after so many seconds; the first build is not counted

    Raises what `build` raises.
    """
    chosen = replace(options, reuse=False)
    report = build(graphs, store, memo, programs=programs, options=chosen, costs=costs, listener=first)
    deadline = math.inf if budget_secs is None else time.monotonic() + budget_secs
    tuning = _Tuning(
        store=store,
        memo=memo,
        programs=programs,
        options=options,
        toolchain=report.toolchain,
        listener=listener,
        deadline=deadline,
    )
    # Those after them are what their ways need.
    before = {o.graph.name: replace(o.item, entry=o.entry) for o in report.outcomes[: len(graphs)]}
    slowest_first = sorted(before.values(), key=lambda item: -_device_ns(item) * weights.get(item.graph.name, 1))
    for item in slowest_first:
        if item.entry is not None:
            tuning.try_ways(item, max(LEAST_SECS, over * item.entry.cost.wall_secs))
    tuning.prove_quickest([item.graph for item in slowest_first])
    after = {item.graph.name: item for item in tuning.plan(graphs, "best")}
    found = []
    for graph in graphs:
        name, ways = graph.name, tuning.ways(graph)
        untried = sum(way.entry is None and way.failure is None for way in ways)
        refused = tuple(f"{way.made.name}: {way.failure.cause}" for way in ways if way.entry is None and way.failure)
        found.append(
            Tuned(
                weight=weights.get(name, 1),
                before=replace(before[name], verdict=store.verdict(entry) if (entry := before[name].entry) else None),
                after=after[name],
                refused=refused,
                left=untried if before[name].entry is not None else 0,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class _Tuning:
    """deadline: by time.monotonic"""

    store: LocalStore
    memo: Memo
    programs: Programs
    options: BuildOptions
    toolchain: Mapping[str, str]
    listener: TuneListener
    deadline: float

    def plan(self, graphs: Iterable[Graph], choice: Choice) -> list[PlanItem]:
        return plan(
            graphs,
            sources=SourceHashes(WorkTree()),
            programs=self.programs,
            toolchain=self.toolchain,
            store=self.store,
            choice=choice,
        )

    def ways(self, graph: Graph) -> list[PlanItem]:
        """The other ways of a graph, each as a graph of its own."""
        return self.plan([way.graph for way in graph.ways], "first")[: len(graph.ways)]

    def try_ways(self, item: PlanItem, limit_secs: float) -> None:
        """Compiles the ways that were never tried, as many at once as there are workers."""
        needs = {way.graph.name: way.needs for way in item.graph.ways}
        left = [way.graph for way in self.ways(item.graph) if way.entry is None and way.failure is None]
        while left and (secs := self.deadline - time.monotonic()) > 0:
            now, left = left[: self.options.jobs], left[self.options.jobs :]
            chosen = replace(self.options, timeout_secs=min(limit_secs, secs), reuse=False)
            self.listener.trying(item.graph, now, chosen.timeout_secs)
            besides = {need.name: need for graph in now for need in needs[graph.name]}
            report = build([*now, *besides.values()], self.store, self.memo, programs=self.programs, options=chosen)
            if secs < limit_secs:
                self._forget(report.failed)
            self.listener.tried(report.outcomes)

    def _forget(self, failed: Sequence[Outcome]) -> None:
        """Compiles that the budget cut short say nothing of their ways: they are tried again."""
        for outcome in failed:
            if outcome.item.key is not None and outcome.trouble is not None and outcome.trouble.retryable:
                self.store.clear_failure(outcome.item.key)

    def prove_quickest(self, graphs: Sequence[Graph]) -> None:
        """Proves the quickest way of each graph; where it is disproven or cannot be told, the next."""
        untold: set[str] = set()
        while (secs := self.deadline - time.monotonic()) > 0:
            chosen = [self._quickest(graph, untold) for graph in graphs]
            entries = {item.entry.key.digest: item.entry for item in chosen if item and item.entry and not item.verdict}
            if not entries:
                return
            self.listener.proving([entry.graph.name for entry in entries.values()])
            budget_secs = None if math.isinf(secs) else secs
            found = prove(self.store, list(entries.values()), self.memo, options=self.options, budget_secs=budget_secs)
            untold |= {each.entry.key.digest for each in found if each.ending not in ("proven", "disproven")}

    def _quickest(self, graph: Graph, untold: set[str]) -> PlanItem | None:
        """Of the ways that are there and may be right; None where a quicker one cannot be found by proving."""
        ways = self.plan([graph, *(way.graph for way in graph.ways)], "first")
        calls = {way.graph.name: way.calls for way in graph.ways}
        ready = [
            (item, item.estimate_ns * calls.get(item.graph.name, 1))
            for item in ways[: len(graph.ways) + 1]
            if item.way is None and item.entry is not None and item.entry.key.digest not in untold
        ]
        return quickest(ready)


def _device_ns(item: PlanItem) -> float:
    return item.estimate_ns if math.isfinite(item.estimate_ns) else 0.0


def _item_json(item: PlanItem) -> dict[str, Any]:
    return {
        "way": item.made.name,
        "calls": item.calls,
        "estimate_ns": item.estimate_ns if math.isfinite(item.estimate_ns) else None,
        "key": item.entry and item.entry.key.digest,
        "proof": item.verdict and item.verdict.state,
    }
