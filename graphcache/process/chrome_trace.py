"""Timelines in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Format: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete
events (`X`) with `ts` and `dur` in microseconds, and metadata events (`M`) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Span:
    """Something that takes time on a lane (`worker 1`, `device 0`) of a group (`build`, `predicted`).

    start, secs: seconds from the timeline's beginning, and how long
    """

    group: str
    lane: str
    name: str
    start: float
    secs: float
    facts: Mapping[str, Any] = field(default_factory=dict)


def trace_json(spans: Iterable[Span]) -> str:
    """The trace's text: a process for each group and a thread for each lane, in the order in which they first come."""
    groups: dict[str, int] = {}
    lanes: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    for span in spans:
        process = groups.setdefault(span.group, len(groups) + 1)
        thread = lanes.setdefault((span.group, span.lane), len(lanes) + 1)
        place = {"pid": process, "tid": thread, "ts": 1e6 * span.start, "dur": 1e6 * span.secs}
        events.append({"name": span.name, "ph": "X", **place, "args": dict(span.facts)})
    names = [_name("process_name", pid, 0, group) for group, pid in groups.items()]
    names += [_name("thread_name", groups[group], tid, lane) for (group, lane), tid in lanes.items()]
    return json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}) + "\n"


def spans_of(trace: Mapping[str, Any]) -> list[Span]:
    """The spans of a trace that `trace_json` wrote, in its order. Raises KeyError and TypeError for anything else."""
    events = trace["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    return [
        Span(
            names["process_name", e["pid"], 0],
            names["thread_name", e["pid"], e["tid"]],
            e["name"],
            e["ts"] / 1e6,
            e["dur"] / 1e6,
            e["args"],
        )
        for e in events
        if e["ph"] == "X"
    ]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
