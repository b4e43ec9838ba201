"""The cross gcc is tried before anything compiles. It is a fake one, but for the last test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from graphcache import doctor
from graphcache.errors import ToolchainError
from graphcache.local.memo import Memo
from graphcache.toolchain.cross_gcc import PACKAGES, cross_gcc_version
from graphcache.toolchain.visible import visible_parts
from graphcache.vendor import layouts as vendor
from tests.support.fake_gcc import asked, header, write_gcc

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake gcc of a test goes; first on PATH."""
    found = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{found}:/bin:/usr/bin")
    return found


def test_it_is_asked_once_as_long_as_it_stays(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0")
    assert cross_gcc_version(memo) == cross_gcc_version(memo) == "12.2.0"
    assert asked(folder) == 2, "its version, and a compile"
    path = write_gcc(folder, "13.1.0")
    os.utime(path, ns=(1, 1))
    assert cross_gcc_version(memo) == "13.1.0"


def test_without_headers_it_is_an_error_each_time_until_they_are_there(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0", headers=False)
    for _ in range(2):
        with pytest.raises(ToolchainError, match=r"cannot compile C.*assert\.h: No such file") as error:
            cross_gcc_version(memo)
        assert "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" in error.value.hint
    header(folder).touch()
    assert cross_gcc_version(memo) == "12.2.0"


def test_headers_that_go_later_are_missed(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0")
    cross_gcc_version(memo)
    header(folder).unlink()
    with pytest.raises(ToolchainError, match=r"assert\.h"):
        cross_gcc_version(memo)


def test_headers_that_change_are_compiled_again(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0")
    cross_gcc_version(memo)
    header(folder).write_text("#define NEW")
    assert cross_gcc_version(memo) == "12.2.0"
    assert asked(folder) == 4


@pytest.mark.parametrize("planted", [None, "12.2.0", {"version": "9"}, {"version": "9", "headers": {}}, [1]])
def test_a_row_that_says_less_is_a_miss(
    memo: Memo, folder: Path, monkeypatch: pytest.MonkeyPatch, planted: object
) -> None:
    write_gcc(folder, "12.2.0")
    monkeypatch.setattr(memo, "get", lambda key: planted)
    assert cross_gcc_version(memo) == "12.2.0"


def test_one_that_cannot_be_run_is_an_error(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(ToolchainError, match="cannot be run"):
        cross_gcc_version(memo)


def test_doctor_and_diff_say_it(memo: Memo, folder: Path) -> None:
    write_gcc(folder, "12.2.0", headers=False)
    (finding,) = doctor._guarded("cross gcc", lambda: doctor._cross_gcc(memo))
    assert finding.level == "bad"
    assert "assert.h" in finding.fact
    assert PACKAGES[1] in finding.hint
    assert "assert.h" in visible_parts(memo).missing["cross-gcc"]


def test_set_up_installs_the_same_packages() -> None:
    assert f"missing+=({' '.join(PACKAGES)})" in (ROOT / "dev").read_text()


@pytest.mark.skipif(shutil.which(vendor.CROSS_GCC) is None, reason="there is no cross gcc here")
def test_the_real_one_is_remembered_by_the_headers_that_it_reads(memo: Memo) -> None:
    remembered: dict[str, object] = {}
    memo.set = lambda key, value: remembered.update({key: value})  # type: ignore[method-assign]
    version = cross_gcc_version(memo)
    ((_, value),) = remembered.items()
    assert isinstance(value, dict)
    assert value["version"] == version
    assert {Path(path).name for path in value["headers"]} >= {"assert.h", "stdint.h", "string.h"}
    assert all(value["headers"].values())
