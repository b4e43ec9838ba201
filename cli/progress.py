"""How a running build is shown: live on a terminal, one line an event elsewhere, not at all with --json."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from graphcache.build.report import Listener, Outcome, Running, Silent, Trouble
from graphcache.costs import Expected
from graphcache.errors import headline
from graphcache.graph import Graph
from graphcache.plan import PlanItem, cause_line
from graphcache.process.shown import bytes_text, secs_text


@contextmanager
def build_progress(as_json: bool) -> Iterator[Listener]:
    """The listener that suits where stdout goes. What it shows live is gone when the block ends."""
    if as_json:
        yield Silent()
    elif sys.stdout.isatty():
        live = LiveProgress()
        try:
            yield live
        finally:
            live.stop()
    else:
        yield LineProgress()


class LineProgress:
    """One line for the plan, for each start and for each end."""

    def __init__(self) -> None:
        self._expected: Mapping[str, Expected] = {}
        self._total = self._done = 0

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        self._expected = expected
        self._total = sum(item.entry is None for item in items)
        self.say(plan_text(items, expected, workers))

    def started(self, graph: Graph, expected: Expected | None) -> None:
        self.say(f"start   {graph.name}{last_time_text(expected)}")

    def refused(self, item: PlanItem, trouble: Trouble, following: PlanItem) -> None:
        self.say(
            f"refused {item.made.name}  {cause_line(trouble.cause)}; next is {following.way or following.made.name}"
        )

    def elsewhere(self, graph: Graph) -> None:
        self.say(f"wait    {graph.name}  another process is compiling it")

    def finished(self, outcome: Outcome) -> None:
        if outcome.state != "ready":
            self._done += 1
            # A way that is taken instead of a refused one may need graphs that were not in the plan.
            self._total = max(self._total, self._done)
            self.say(f"{outcome_text(outcome)}  ({self._done} of {self._total})")

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        pass

    def say(self, line: str) -> None:
        # Flushed: whoever follows a job's log wants to see what runs now.
        print(line, flush=True)


class LiveProgress(LineProgress):
    """The same lines, and below them what runs now against how long it took last time, and what is left."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live

        self._workers = 1
        self._live = Live(refresh_per_second=5, transient=True)

    def stop(self) -> None:
        self._live.stop()

    def planned(self, items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> None:
        super().planned(items, expected, workers)
        self._workers = max(1, workers)
        if self._total:
            self._live.start()

    def tick(self, running: Sequence[Running], waiting: Sequence[Graph]) -> None:
        self._live.update(self._picture(running, waiting))

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)

    def _picture(self, running: Sequence[Running], waiting: Sequence[Graph]) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for run in running:
            total = run.expected.secs if run.expected else None
            bar = ProgressBar(total=total, completed=min(run.secs, total or 0), width=24, pulse=total is None)
            table.add_row(Text(run.graph.name), bar, Text(secs_text(run.secs) + last_time_text(run.expected)))
        table.add_row(Text(f"{self._done} of {self._total}"), Text(""), Text(self._left_text(running, waiting)))
        return table

    def _left_text(self, running: Sequence[Running], waiting: Sequence[Graph]) -> str:
        known = [self._expected[graph.name].secs for graph in waiting if graph.name in self._expected]
        now = [max(0.0, run.expected.secs - run.secs) for run in running if run.expected]
        if len(known) < len(waiting) or len(now) < len(running):
            return f"{len(waiting)} waiting"
        # The last graph takes what it takes, however many workers are free.
        return f"about {secs_text(max([sum(known + now) / self._workers, *known, *now]))} left"


def plan_text(items: Sequence[PlanItem], expected: Mapping[str, Expected], workers: int) -> str:
    """`plan    5 graphs: 3 ready, 2 to compile, about 7.1 s one after another; 2 workers`."""
    ready = sum(item.entry is not None for item in items)
    parts = [f"{ready} ready"]
    to_do = len(items) - ready
    if to_do:
        known = [expected[item.made.name].secs for item in items if item.made.name in expected]
        rest = f" and {to_do - len(known)} of unknown cost" if known and len(known) < to_do else ""
        cost = f", about {secs_text(sum(known))} one after another{rest}" if known else ""
        parts.append(f"{to_do} to compile{cost}; {workers} {'worker' if workers == 1 else 'workers'}")
    return f"plan    {len(items)} {'graph' if len(items) == 1 else 'graphs'}: {', '.join(parts)}"


def last_time_text(expected: Expected | None) -> str:
    if expected is None:
        return ""
    if expected.basis == "recorded":
        return f"  (last time {secs_text(expected.secs)})"
    return f"  (about {secs_text(expected.secs)}, from {expected.basis})"


def outcome_text(outcome: Outcome) -> str:
    """One line for people; the log's place is in the summary."""
    name, entry = outcome.graph.name, outcome.entry
    if entry is None:
        cause = headline(outcome.trouble.cause) if outcome.trouble else ""
        return f"failed  {name}  {cause or 'for an unknown reason'}"
    way = f", as {outcome.item.way}" if outcome.item.way is not None else ""
    if outcome.state == "compiled":
        cost = entry.cost
        took = f"{secs_text(cost.wall_secs)} (CPU {secs_text(cost.cpu_secs)}, {bytes_text(cost.peak_rss_bytes)})"
        return f"done    {name}  compiled in {took}, {bytes_text(entry.size_bytes)}{way}"
    words = {"same program": "same program, nothing to compile", "elsewhere": "compiled by another build"}
    return f"done    {name}  {words.get(outcome.state, outcome.state)}{way}"
