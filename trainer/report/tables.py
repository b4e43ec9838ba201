"""A report as tables, and the tables as text for a terminal or as Markdown for docs/results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.report.comparison import Comparison
from trainer.report.ranges import StepRange
from trainer.report.runs import RecordedRun


@dataclass(frozen=True)
class Table:
    """Rows under a header, all cells as text. The first `words` columns hold words; numbers follow."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def range_table(run: RecordedRun, ranges: Sequence[StepRange]) -> Table:
    """The ranges of one run, one a row."""
    header = ("steps", "mean loss", "median s", "slowest s", "tokens/s", "update wait s", "drift")
    if all(each.eval_loss is None for each in ranges):
        return Table(run.label, header, tuple(_range_row(each) for each in ranges))
    rows = ((*_range_row(each), "-" if each.eval_loss is None else f"{each.eval_loss:.4f}") for each in ranges)
    return Table(run.label, (*header, "eval loss"), tuple(rows))


def _range_row(each: StepRange) -> tuple[str, ...]:
    return (
        f"{each.first}-{each.last}",
        f"{each.mean_loss:.4f}",
        f"{each.median_secs:.3f}",
        f"{each.slowest_secs:.3f}",
        f"{each.tokens_per_sec:,.0f}",
        f"{each.update_wait_secs:.3f}",
        f"{each.drift:+.1%}",
    )


def prediction_table(runs: Sequence[RecordedRun]) -> Table | None:
    """Predicted against measured step times of the last session of each run; None where no run has any."""
    rows = []
    for run in runs:
        measured = run.prediction.get("measured_step_secs")
        for name, what in (("before", "before it began"), ("own_costs", "the model with its own costs")):
            found = run.prediction.get(name) or {}
            secs = found.get("step_secs")
            if secs is not None and measured is not None:
                error = f"{secs / measured - 1:+.1%}"
                rows.append((run.label, what, str(found.get("basis")), f"{secs:.3f}", f"{measured:.3f}", error))
    header = ("run", "predicted", "from", "predicted s", "measured s", "error")
    return Table("predicted against measured", header, tuple(rows), words=3) if rows else None


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Every other run against the first."""
    header = ("run", "losses", "speed", "common steps")
    base = comparisons[0].base
    return Table(f"against {base}", header, tuple(_comparison_row(each) for each in comparisons), words=3)


def _comparison_row(each: Comparison) -> tuple[str, ...]:
    ratio = "-" if each.speed_ratio is None else f"{each.speed_ratio:.3f} times as fast"
    return each.other, losses_text(each), ratio, str(each.common_steps)


def losses_text(each: Comparison) -> str:
    """How the losses of two runs compare, in words."""
    if each.largest is None:
        return "no common step"
    gap, step = each.largest
    return "equal bit for bit" if each.equal_losses else f"differ by {gap:.3g} at most, at step {step}"


def difference_table(each: Comparison) -> Table:
    """What differs in settings and environment."""
    return Table(f"{each.other} against {each.base}", ("what", each.base, each.other), each.differences, words=3)


def as_text(table: Table) -> list[str]:
    """Aligned columns under the title."""
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    lines = [table.title]
    for row in (table.header, *table.rows):
        cells = (
            cell.ljust(width) if place < table.words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def as_markdown(table: Table) -> list[str]:
    """A heading and a Markdown table."""
    rule = ["---" if place < table.words else "---:" for place in range(len(table.header))]
    rows = (table.header, tuple(rule), *table.rows)
    return [f"### {_escaped(table.title)}", "", *("| " + " | ".join(map(_escaped, row)) + " |" for row in rows)]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
