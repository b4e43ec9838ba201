"""What may lie in a folder that is to be a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcache.store.foreign import is_foreign
from graphcache.store.layout import Layout


@pytest.mark.parametrize(
    ("names", "foreign"),
    [((), False), (("lost+found",), False), (("lost+found", "entries", "local"), False), (("lost+found", "src"), True)],
)
def test_a_fresh_volume_is_no_ones(tmp_path: Path, names: tuple[str, ...], foreign: bool) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert is_foreign(Layout(tmp_path)) is foreign
