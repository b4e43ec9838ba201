"""The loops over a row that a traced graph takes: one for each time that the whole row must be known first.

softmax, say, is three: the maximum; the powers and their sum; the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from trainer.host.exponential import exp
from trainer.host.lanes import WIDE
from trainer.host.trace import Applied, Joined, Reduced, Sliced, Value, everything_under, operands


@dataclass(frozen=True, eq=False)
class Job:
    """What one loop does with `value`: store it in an output from column `begin` on, or else reduce it for `into`."""

    value: Value
    output: int = 0
    begin: int = 0
    into: Reduced | None = None


@dataclass(frozen=True)
class Pass:
    """A loop over `columns` columns of a row, which are cut where an evaluated value's pieces meet."""

    jobs: tuple[Job, ...]
    columns: int

    def segments(self) -> list[tuple[int, int, int]]:
        """(begin, end, lanes): whole vectors and what is left over, cut by cut."""
        cuts = {0, self.columns}.union(*(_cuts(job.value, 0) for job in self.jobs))
        found = []
        for begin, end in pairwise(sorted(c for c in cuts if 0 <= c <= self.columns)):
            whole = begin + (end - begin) // WIDE * WIDE
            found += [(begin, whole, WIDE)] * (whole > begin) + [(whole, end, end - whole)] * (end > whole)
        return found


def _cuts(value: Value, offset: int) -> Iterator[int]:
    """Columns c at which the element c + offset of a value begins to be another piece."""
    if isinstance(value, Joined):
        begin = 0
        for piece in value.pieces:
            yield begin - offset
            yield from _cuts(piece, offset - begin)
            begin += piece.columns
    else:
        shift = value.begin if isinstance(value, Sliced) else 0
        for operand in operands(value):
            if operand.columns > 1:
                yield from _cuts(operand, offset + shift)


def passes(outputs: Sequence[Value]) -> list[Pass]:
    """In their order: each value in the first one in which all that it needs of the row is known."""
    jobs = [job for number, output in enumerate(outputs) for job in _stores(output, number)]
    jobs += [Job(value.operand, into=value) for value in everything_under(outputs) if isinstance(value, Reduced)]
    keys = sorted({(_level(job.value), job.value.columns) for job in jobs})
    return [Pass(tuple(job for job in jobs if (_level(job.value), job.value.columns) == key), key[1]) for key in keys]


def _stores(output: Value, number: int) -> list[Job]:
    """Pieces side by side are stored in one loop, so that what they share is computed once. No loop for one column."""
    if output.columns == 1:
        return []
    pieces, begin, jobs = output.pieces if isinstance(output, Joined) else (output,), 0, []
    for piece in pieces:
        jobs.append(Job(piece, number, begin))
        begin += piece.columns
    return jobs


@cache
def _level(value: Value) -> int:
    """How many loops over the row must have ended before an element of the value can be computed."""
    if isinstance(value, Reduced):
        return _level(value.operand) + 1
    return max((_level(operand) for operand in operands(value)), default=0)


def powers(value: Value, whole: bool = True) -> Iterator[tuple[Value, bool]]:
    """The exponentials of rows that one loop computes for a value, each with whether it does so for the whole row."""
    if isinstance(value, Applied) and value.function is exp and value.columns > 1:
        yield value, whole
    whole = whole and isinstance(value, Applied)
    for operand in operands(value):
        yield from powers(operand, whole)
