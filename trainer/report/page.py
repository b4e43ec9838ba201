"""A report as one HTML page: tables and figures, no script, nothing fetched, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from trainer.report.figures import device_memory, loss_curves, phases, step_times
from trainer.report.report import Report
from trainer.report.tables import Table
from trainer.report.timeline_figure import step_timeline

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 0 auto;
  padding: 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
figure { margin: 1rem 0; break-inside: avoid }
svg { width: 100%; max-width: 46rem; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; break-inside: avoid }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
.word { text-align: left; white-space: normal; overflow-wrap: break-word; max-width: 24rem }
@media print { body { max-width: none; padding: 0; font-size: 10pt } .wide { overflow: visible } }
"""


def page(report: Report) -> str:
    """The whole page."""
    title = "Training report: " + ", ".join(run.label for run in report.runs)
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # An icon of its own keeps a browser from asking the server for one.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *_figures(report),
            *(_table(table) for table in report.tables()),
            "</body></html>\n",
        )
    )


def _figures(report: Report) -> Iterator[str]:
    drawn = (
        ("Loss", loss_curves(report.runs)),
        ("Step time", step_times(report.runs)),
        ("Where a step's time goes", phases(report.runs)),
        ("Device memory", device_memory(report.runs)),
    )
    timelines = ((f"A step of {run.label}", step_timeline(run.trace)) for run in report.runs if run.trace)
    for title, svg in (*drawn, *timelines):
        yield f'<h2>{escape(title)}</h2><figure role="img" aria-label="{escape(title)}">{svg}</figure>'


def _table(table: Table) -> str:
    rows = [_row(table, table.header, "th"), *(_row(table, row, "td") for row in table.rows)]
    return f'<h2>{escape(table.title)}</h2><div class="wide"><table>{"".join(rows)}</table></div>'


def _row(table: Table, cells: tuple[str, ...], tag: str) -> str:
    shown = (
        f'<{tag} class="word">{escape(cell)}</{tag}>' if place < table.words else f"<{tag}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(shown)}</tr>"
