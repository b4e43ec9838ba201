"""The compiler's estimate of device time, from the names of the files that its summary leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from graphcache.toolchain.furiosa import estimate_ns


def summary(folder: Path, *names: str) -> Path:
    place = folder / "b4a8a6600218f4bc" / "summary" / "selected_tactics" / "debug"
    place.mkdir(parents=True)
    for name in names:
        (place / name).touch()
    return folder


def test_the_cheapest_way_of_each_operator_is_summed(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        "PreLower_O317_cost_16758_hidable_false_rank_1.log",
        "PreLower_O317_cost_20000_hidable_false_rank_2.log",
        "PreLower_O31_cost_100_hidable_true.log",
        "PreLower_O290_cost_0_hidable_false_rank_1.log",
        "PreLower_O290_cost_862_hidable_false_rank_2.log",
        "notes.txt",
    )
    assert estimate_ns(found) == 16758 + 100


def test_without_a_summary_there_is_none(tmp_path: Path) -> None:
    assert estimate_ns(tmp_path) is None
    assert estimate_ns(tmp_path / "not-there") is None
