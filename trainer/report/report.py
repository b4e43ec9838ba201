"""The report of one run or several: read once, shown as text, Markdown, JSON or a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.report.comparison import Comparison, compare
from trainer.report.ranges import StepRange, ranges_of
from trainer.report.runs import RecordedRun, read_runs
from trainer.report.tables import Table, comparison_table, difference_table, prediction_table, range_table


@dataclass(frozen=True)
class Report:
    """Runs, the ranges of each, and every run but the first against the first."""

    runs: Sequence[RecordedRun]
    ranges: Sequence[Sequence[StepRange]]
    comparisons: Sequence[Comparison]

    def tables(self) -> list[Table]:
        """Everything that the report says, in the order of reading."""
        tables = [range_table(run, ranges) for run, ranges in zip(self.runs, self.ranges, strict=True)]
        predicted = prediction_table(self.runs)
        if predicted is not None:
            tables.append(predicted)
        if self.comparisons:
            tables.append(comparison_table(self.comparisons))
        return tables + [difference_table(each) for each in self.comparisons if each.differences]

    def as_json(self) -> dict[str, Any]:
        shown = [
            {
                "run": run.label,
                "folder": str(run.folder),
                "steps": len(run.steps),
                "ranges": [each.as_json() for each in ranges],
                "prediction": dict(run.prediction),
            }
            for run, ranges in zip(self.runs, self.ranges, strict=True)
        ]
        return {"runs": shown, "comparisons": [each.as_json() for each in self.comparisons]}


def make_report(folders: Sequence[Path], ranges: Sequence[tuple[int, int]] | None = None) -> Report:
    """Read `folders` and compare. `ranges`: of steps, both ends included; None for five equal ones.

    Raises ReportError.
    """
    runs = read_runs(folders)
    return Report(runs, [ranges_of(run, ranges) for run in runs], [compare(runs[0], other) for other in runs[1:]])
