"""What the driver needs of a machine, on one that lacks it."""

from __future__ import annotations

import ctypes
import errno

import pytest

from graphcache.device import driver


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "DRIVER_LIBRARY", "libnowhere.so")
    assert "libnowhere.so" in driver._library_problem()


def test_a_library_that_is_there_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "DRIVER_LIBRARY", "libc.so.6")
    assert driver._library_problem() == ""


@pytest.mark.parametrize(
    ("code", "blocked"),
    [(errno.ENOSYS, True), (errno.EPERM, True), (errno.EINVAL, False), (errno.EFAULT, False)],
)
def test_io_uring_is_blocked_where_the_call_is_not_let_through(
    monkeypatch: pytest.MonkeyPatch, code: int, blocked: bool
) -> None:
    class FakeLibrary:
        def syscall(self, *_: object) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(driver.ctypes, "CDLL", lambda *_, **__: FakeLibrary())
    assert bool(driver._io_uring_problem()) == blocked
