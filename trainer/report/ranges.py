"""Ranges of steps: mean loss, median and slowest step, tokens/s, update wait, and how step times drift."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from trainer.report.runs import RecordedRun, ReportError

# How many ranges a run is cut into when none are given.
RANGES = 5


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """Steps `first` to `last`, both included.

    mean_loss:       mean over the steps' label tokens, as the loss of one step is
    tokens_per_sec:  all tokens of the range over all its seconds
    update_wait:     mean seconds a step that the main thread waited for updates
    drift:           median step time over that of the run's first range, minus 1
    eval_loss:       of the last evaluation in the range; None without one
    """

    first: int
    last: int
    steps: int
    mean_loss: float
    median_secs: float
    slowest_secs: float
    tokens_per_sec: float
    update_wait_secs: float
    drift: float
    eval_loss: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_ranges(text: str) -> list[tuple[int, int]]:
    """`1-25,26-50` as pairs. Raises ReportError."""
    pairs = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ReportError(
                f"{part.strip()!r} is no range of steps", hint="a range is FIRST-LAST: --ranges 1-25,26-50"
            )
        pairs.append((first, last))
    return pairs


def ranges_of(run: RecordedRun, wanted: Sequence[tuple[int, int]] | None = None) -> list[StepRange]:
    """Statistics of each range that has steps; by default of five ranges of nearly equal length.

    Raises ReportError when the run has no step in any range.
    """
    found: list[StepRange] = []
    for first, last in wanted or _equal_ranges(run):
        inside = [record for record in run.steps if first <= record["step"] <= last]
        if inside:
            found.append(_statistics(inside, found[0].median_secs if found else None))
    if not found:
        last_step = run.steps[-1]["step"]
        raise ReportError(f"{run.folder} has no step in these ranges", hint=f"its steps end at {last_step}")
    return found


def _equal_ranges(run: RecordedRun) -> list[tuple[int, int]]:
    numbers = [record["step"] for record in run.steps]
    parts = min(RANGES, max(1, len(numbers) // 2))
    cuts = [round(part * len(numbers) / parts) for part in range(parts + 1)]
    return [(numbers[low], numbers[high - 1]) for low, high in pairwise(cuts)]


def _statistics(records: Sequence[Mapping[str, Any]], before: float | None) -> StepRange:
    secs = [record["step_secs"] for record in records]
    labels = sum(record["label_tokens"] for record in records)
    return StepRange(
        first=records[0]["step"],
        last=records[-1]["step"],
        steps=len(records),
        mean_loss=sum(record["loss"] * record["label_tokens"] for record in records) / labels,
        median_secs=median(secs),
        slowest_secs=max(secs),
        tokens_per_sec=sum(record["tokens"] for record in records) / sum(secs),
        update_wait_secs=sum(record["update_wait_secs"] for record in records) / len(records),
        drift=0.0 if before is None else median(secs) / before - 1,
        eval_loss=next((r["eval_loss"] for r in reversed(records) if "eval_loss" in r), None),
    )
