"""Where a report goes: the terminal, Markdown, JSON, or a page in a file."""

from __future__ import annotations

import json
from pathlib import Path

from graphcache.process.whole_file import replace_file
from trainer.report.report import Report
from trainer.report.runs import ReportError
from trainer.report.tables import as_markdown, as_text


def show_report(report: Report, *, markdown: bool, html: Path | None, as_json: bool) -> None:
    """Print the report, and write the page where one is asked for. Raises ReportError."""
    if html is not None:
        _write_page(report, html)
    if as_json:
        print(json.dumps(report.as_json(), indent=2, sort_keys=True))
        return
    written = as_markdown if markdown else as_text
    print("\n\n".join("\n".join(written(table)) for table in report.tables()))


def _write_page(report: Report, html: Path) -> None:
    try:
        from trainer.report.page import page
    except ModuleNotFoundError as error:
        raise ReportError(
            f"--html needs {error.name}, which is not installed", hint="pip install '.[report]' in the checkout"
        ) from error
    try:
        replace_file(html, page(report).encode())
    except OSError as error:
        raise ReportError(f"{html} cannot be written: {error.strerror}", hint="choose another --html") from error
