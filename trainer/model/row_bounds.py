"""How many rows `RowGradients` holds: a bound that the memory plan takes. No torch."""

from __future__ import annotations

# So many rows wait before they are added up for the first time: a step of usual size adds up once, at its end.
FEW_ROWS = 8192


def largest_rows(added: int, at_once: int, table: int) -> int:
    """Rows held at most when so many are added in all, so many at once, of a table of so many."""
    return min(2 * added, 3 * table + FEW_ROWS + at_once)
