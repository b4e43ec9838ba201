"""How facts are printed: JSON for programs, columns for people, units that people read.

Rich is imported for a terminal only; a pipe gets plain columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from graphcache.process.streams import report_warning

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


def emit_warning(name: str, message: str) -> None:
    """Print `warning[name]: message` on stderr."""
    report_warning(name, printable(message))


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


def printable(text: str) -> str:
    """`text` with control characters escaped: a tensor's name may hold a newline or a terminal's escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bytes_text(size_bytes: int) -> str:
    """`16.1 GB`, in powers of 1000 as disks and the hub count them."""
    size: float = size_bytes
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"


def count_text(count: int) -> str:
    """`8,030,261,248`."""
    return f"{count:,}"


def secs_text(secs: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if secs < 9.95:
        return f"{secs:.1f} s"
    whole = round(secs)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
