"""Gradients of single rows of a table, on the host: what tokens add to an embedding or to the head."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from trainer.model.row_bounds import FEW_ROWS


class RowGradients:
    """Sums by row over the micro-batches of a step.

    Rows are added up each time that as many wait as are summed already, so that however many tokens a step has, no more
    than three times the table is held (`row_bounds.largest_rows`).
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._count = 0
        self._rows: Tensor | None = None  # [n] int64, in order, each once
        self._sums: Tensor | None = None  # [n, H] float32

    def add(self, rows: Tensor, values: Tensor) -> None:
        """rows: [t] int64, in any order, any number of times; values: [t, H] float32, kept"""
        self._waiting.append((rows, values))
        self._count += len(rows)
        if self._count > max(FEW_ROWS, 0 if self._rows is None else len(self._rows)):
            self._add_up()

    def between(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The rows from `begin` to `end` with gradients: numbers counted from `begin` [n], each once, and sums [n, H].

        Something must have been added.
        """
        if self._waiting:
            self._add_up()
        assert self._rows is not None
        assert self._sums is not None
        first, last = torch.searchsorted(self._rows, torch.tensor([begin, end])).tolist()
        return self._rows[first:last] - begin, self._sums[first:last]

    def _add_up(self) -> None:
        summed = [] if self._rows is None or self._sums is None else [(self._rows, self._sums)]
        parts = [*summed, *self._waiting]
        self._rows, places = torch.unique(torch.cat([rows for rows, _ in parts]), return_inverse=True)
        self._sums = parts[0][1].new_zeros(len(self._rows), parts[0][1].shape[1])
        for (_, values), mine in zip(parts, places.split([len(rows) for rows, _ in parts]), strict=True):
            self._sums.index_add_(0, mine, values)
        self._waiting, self._count = [], 0


class TiedRows(RowGradients):
    """Sums for a table that is embedding and head: the head's part of every micro-batch comes before any of the other.

    They are added micro-batch by micro-batch all the same, the head's part first, so that no schedule changes a bit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._firsts: deque[tuple[Tensor, Tensor]] = deque()

    def add(self, rows: Tensor, values: Tensor) -> None:
        """The head's part of the next micro-batch, which waits for the other one."""
        self._firsts.append((rows, values))

    def add_second(self, rows: Tensor, values: Tensor) -> None:
        """The embedding's part of the first micro-batch that waits."""
        super().add(*self._firsts.popleft())
        super().add(rows, values)
