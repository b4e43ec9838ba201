from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.model import row_gradients
from trainer.model.row_bounds import largest_rows
from trainer.model.row_gradients import RowGradients

TABLE, COLUMNS = 7, 3
ROWS = st.lists(st.lists(st.integers(0, TABLE - 1), max_size=9), min_size=1, max_size=12)


@pytest.fixture(scope="module", autouse=True)
def few_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_gradients, "FEW_ROWS", 4)
        yield


def whole_numbers(count: int) -> torch.Tensor:
    """Whose sums are exact in any order."""
    return torch.randint(-8, 9, (count, COLUMNS)).float()


@given(ROWS, st.integers(1, TABLE))
def test_sums_are_those_of_index_add(batches: list[list[int]], step: int) -> None:
    gradients, expected = RowGradients(), torch.zeros(TABLE, COLUMNS)
    for batch in batches:
        rows, values = torch.tensor(batch, dtype=torch.int64), whole_numbers(len(batch))
        expected.index_add_(0, rows, values)
        gradients.add(rows, values)
    found = torch.zeros(TABLE, COLUMNS)
    for begin in range(0, TABLE, step):
        rows, values = gradients.between(begin, begin + step)
        assert len(rows.unique()) == len(rows)
        found[begin + rows] = values
    assert torch.equal(found, expected)


@given(ROWS)
def test_what_is_held_is_planned(batches: list[list[int]]) -> None:
    gradients = RowGradients()
    at_once = max(len(batch) for batch in batches)
    for number, batch in enumerate(batches, 1):
        gradients.add(torch.tensor(batch, dtype=torch.int64), whole_numbers(len(batch)))
        held = gradients._count + (0 if gradients._rows is None else len(gradients._rows))
        # Adding up holds the sums as well, of a table's rows at most.
        assert held <= largest_rows(number * at_once, at_once, TABLE)
        assert held <= 2 * TABLE + 4 + at_once
