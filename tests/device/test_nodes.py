"""Cards by their nodes, on folders like /dev/rngd."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcache.device.nodes import CannotTellError, assigned_cards, card_number
from tests.device.cards import give, root

__all__ = ["root"]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("npu3", 3),
        ("npu13", 13),
        ("npu1pe0", 1),
        ("npu1pe0-3", 1),
        ("npu10ch7r", 10),
        ("npu0mgmt", 0),
        ("npu1,npu3", None),
        ("npu", None),
        ("npu1-3", None),
        ("xnpu1", None),
        ("npu1pe0,npu3pe0", None),
    ],
)
def test_a_nodes_name_gives_the_cards_number(name: str, number: int | None) -> None:
    assert card_number(name) == number


def test_cards_keep_the_hosts_numbers_gaps_and_all(root: Path) -> None:
    give(root, 3, 1, 10)
    assert [card.number for card in assigned_cards(root)] == [1, 3, 10]
    assert "npu1pe0-3" in assigned_cards(root)[0].nodes


def test_a_card_may_be_one_file_or_one_folder(root: Path) -> None:
    (root / "npu1").touch()
    (root / "npu3").mkdir()
    assert [card.number for card in assigned_cards(root)] == [1, 3]


def test_a_list_of_cards_is_not_card_13(root: Path) -> None:
    (root / "npu1,npu3").touch()
    with pytest.raises(CannotTellError, match="npu1,npu3"):
        assigned_cards(root)


def test_other_files_are_no_cards(root: Path) -> None:
    (root / "README").touch()
    assert assigned_cards(root) == ()


def test_a_machine_without_the_folder_has_no_cards(tmp_path: Path) -> None:
    assert assigned_cards(tmp_path / "nowhere") == ()


def test_a_file_in_the_folders_place_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rngd").touch()
    with pytest.raises(CannotTellError, match="Not a directory"):
        assigned_cards(tmp_path / "rngd")
