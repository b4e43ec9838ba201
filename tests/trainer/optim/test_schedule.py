from __future__ import annotations

import math

import pytest

from trainer.config import SCHEDULES
from trainer.optim.schedule import SHAPES, Schedule


def test_every_schedule_of_the_settings_is_known() -> None:
    assert set(SHAPES) == set(SCHEDULES)


def test_constant() -> None:
    assert {Schedule(0.5, "constant", 0, 10).at(step) for step in range(1, 30)} == {0.5}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_is_linear_and_its_first_step_counts(kind: str) -> None:
    schedule = Schedule(1.0, kind, 4, 10)
    assert [schedule.at(step) for step in range(1, 6)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_reaches_zero_after_the_last_step() -> None:
    schedule = Schedule(1.0, "linear", 0, 4)
    assert [schedule.at(step) for step in range(1, 7)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_cosine() -> None:
    schedule = Schedule(2.0, "cosine", 2, 6)
    expected = [2 * 0.5 * (1 + math.cos(math.pi * done)) for done in (0, 0.25, 0.5, 0.75, 1, 1)]
    assert [schedule.at(step) for step in range(3, 9)] == pytest.approx(expected, abs=1e-15)


def test_a_run_of_nothing_but_warm_up() -> None:
    assert Schedule(1.0, "linear", 8, 4).at(4) == 0.5
    assert Schedule(1.0, "cosine", 4, 4).at(5) == 1.0
