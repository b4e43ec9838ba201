from __future__ import annotations

from pathlib import Path

import pytest

from graphcache.errors import UsageError
from trainer.preflight import host_load as module
from trainer.preflight.host_load import HostLoadError, check_load, host_load, parse_wait, wait_for_load


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc/loadavg of the test's own, and a clock that sleeping moves."""
    path = tmp_path / "loadavg"
    path.write_text("8.25 9.00 9.50 3/812 4711\n")
    now = [0.0]
    monkeypatch.setattr(module, "LOADAVG", path)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda secs: now.__setitem__(0, now[0] + secs))
    return path


def test_the_load_is_the_one_minute_average(load: Path) -> None:
    assert host_load() == 8.25


def test_this_machines_load_can_be_told() -> None:
    assert host_load() >= 0


@pytest.mark.parametrize("text", ["", "high", "\n"])
def test_a_load_that_cannot_be_told_counts_as_busy(load: Path, text: str) -> None:
    load.write_text(text)
    with pytest.raises(HostLoadError, match="does not tell"):
        check_load(100.0)


def test_no_proc_counts_as_busy(load: Path) -> None:
    load.unlink()
    with pytest.raises(HostLoadError, match="does not tell"):
        wait_for_load(100.0, 0, print)


def test_without_a_limit_nothing_is_asked(load: Path) -> None:
    load.unlink()
    assert check_load(None) is None
    assert wait_for_load(None, 3600, print) is None


@pytest.mark.parametrize(("limit", "busy"), [(8.24, True), (8.25, False), (150.0, False)])
def test_check_says_whether_the_host_is_idle_enough(load: Path, limit: float, busy: bool) -> None:
    if busy:
        with pytest.raises(HostLoadError, match=r"8\.25, above --wait-for-load 8\.24"):
            check_load(limit)
    else:
        assert check_load(limit) == 8.25


def test_a_run_waits_until_the_load_comes_down(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([9.0, 8.0, 3.0])
    monkeypatch.setattr(module, "host_load", lambda: next(values))
    said: list[str] = []
    assert wait_for_load(4.0, 60, said.append) == 3.0
    assert said == ["waiting  the host's load is 9; the run begins at 4 or less"]


def test_the_wait_is_bounded_and_says_something_each_minute(load: Path) -> None:
    said: list[str] = []
    with pytest.raises(HostLoadError, match="did not come down to --wait-for-load 4 in 150 s"):
        wait_for_load(4.0, 150, said.append)
    assert len(said) == 3


@pytest.mark.parametrize(("text", "secs"), [("90", 90), ("90s", 90), ("30m", 1800), ("1h", 3600), (" 1.5h ", 5400)])
def test_a_wait_is_seconds_minutes_or_hours(text: str, secs: float) -> None:
    assert parse_wait(text) == secs


@pytest.mark.parametrize("text", ["", "h", "-1h", "1d", "1e3", "inf"])
def test_a_wait_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="--wait is"):
        parse_wait(text)
