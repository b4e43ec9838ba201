"""Scratch folders are gone after their process, however it ended."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from graphcache.process.scratch import PREFIX, SWEEP_AFTER_SECS, scratch_folder
from tests.store.processes import kill, start


def folders(parent: Path) -> list[Path]:
    return sorted(parent.glob(PREFIX + "*"))


def test_it_is_removed_with_all_in_it(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(b"x")
        assert folders(tmp_path) == [folder]
    assert folders(tmp_path) == []


def test_what_a_killed_build_left_is_swept_by_one_of_the_next_day(tmp_path: Path) -> None:
    def hold() -> None:
        with scratch_folder(tmp_path) as folder:
            (folder / "big").write_bytes(b"x")
            time.sleep(60)

    child = start(hold)
    while not list(tmp_path.glob("*/big")):
        time.sleep(0.01)
    (theirs,) = folders(tmp_path)
    day_before = time.time() - SWEEP_AFTER_SECS - 1
    os.utime(theirs / "held", (day_before, day_before))
    with scratch_folder(tmp_path):
        assert theirs.exists(), "its build is alive"
    kill(child)
    with scratch_folder(tmp_path) as ours:
        assert folders(tmp_path) == [ours]


def test_a_young_folder_stays_even_where_locks_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert folders(tmp_path) == sorted([first, second])


def test_folders_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f"{PREFIX}other"
    other.mkdir()
    link = tmp_path / f"{PREFIX}link"
    os.symlink(tmp_path, link)
    with scratch_folder(tmp_path):
        pass
    assert other.is_dir(), "no lock file: somebody has just made it"
    assert link.is_symlink()
