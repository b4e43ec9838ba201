from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from graphcache.build.report import Outcome, Silent
from graphcache.build.trace import TracingListener
from graphcache.graph import Graph, TensorSpec
from graphcache.plan import PlanItem
from graphcache.process.chrome_trace import Span, spans_of, trace_json
from graphcache.source.hash import SourceHash


def graph(number: int) -> Graph:
    return Graph(name=f"g{number}", function="m:f", args=(TensorSpec("x", "float32", (number + 1,)),), catalog="c")


def outcome(number: int) -> Outcome:
    item = PlanItem(graph=graph(number), source=SourceHash("s", {}), state="missing", reason="no artifact")
    return Outcome(item, "failed", None)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_graphs_that_run_at_once_are_on_different_lanes(ends: list[int]) -> None:
    """Starts and ends in any order: no lane has two graphs at a time, and every ended graph has a span."""
    now = [0.0]
    tracing = TracingListener(Silent(), lambda: now[0])
    running: list[int] = []
    for number, end in enumerate(ends):
        tracing.started(graph(number), None)
        running.append(number)
        now[0] += 1
        if end < len(running):
            tracing.finished(outcome(running.pop(end)))
    for number in running:
        tracing.finished(outcome(number))
    assert {span.name for span in tracing.spans} == {f"g{number}" for number in range(len(ends))}
    for lane in {span.lane for span in tracing.spans}:
        spans = sorted((s.start, s.start + s.secs) for s in tracing.spans if s.lane == lane)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_what_was_ready_has_no_span() -> None:
    tracing = TracingListener(Silent())
    tracing.finished(outcome(1))
    assert tracing.spans == []


def test_a_trace_names_groups_and_lanes() -> None:
    spans = [Span("build", "worker 1", "a", 0.0, 1.5, {"key": "k"}), Span("predicted", "worker 1", "b", 1.0, 0.5)]
    events = json.loads(trace_json(spans))["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {("process_name", "build"), ("process_name", "predicted"), ("thread_name", "worker 1")}
    complete = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in complete] == [("a", 0.0, 1.5e6), ("b", 1e6, 0.5e6)]
    assert len({e["pid"] for e in complete}) == 2
    assert complete[0]["args"] == {"key": "k"}
    assert spans_of(json.loads(trace_json(spans))) == spans


def test_nothing_in_a_trace_is_an_empty_trace(tmp_path: Path) -> None:
    assert json.loads(trace_json([]))["traceEvents"] == []
