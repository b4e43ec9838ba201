"""How facts are printed: JSON for programs, columns for people.

Rich is imported for a terminal only; a pipe gets plain columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from graphcache.process.shown import printable

# On a terminal, a column of words may be folded to so many characters a line.
FOLDED = 8


def emit_json(value: Any) -> None:
    """Print `value` as JSON: sorted keys, indented, ASCII."""
    print(json.dumps(value, indent=2, sort_keys=True))


def emit_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Print rows under a header; the columns named in `right` are aligned to the right. Nothing for no rows."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return
    if sys.stdout.isatty():
        _emit_rich(header, cells, right)
    else:
        _emit_plain(header, cells, right)


def emit_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print `name  value` lines, aligned."""
    pairs = [(name, printable(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}".rstrip())


def _emit_plain(header: Sequence[str], rows: list[list[str]], right: Collection[str]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())


def _emit_rich(header: Sequence[str], rows: list[list[str]], right: Collection[str]) -> None:
    """The first column, most often a key, and numbers stay whole. A terminal too narrow for that gets plain lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    whole = {header[0], *right}
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    least = [width if name in whole else min(width, FOLDED) for name, width in zip(header, widths, strict=True)]
    if sum(least) + 2 * (len(least) - 1) > console.width:
        _emit_plain(header, rows, right)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(header, least, strict=True):
        justify: Literal["right", "left"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole, min_width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
