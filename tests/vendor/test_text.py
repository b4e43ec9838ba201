"""The vendor's errors as people read them."""

from __future__ import annotations

import pytest

from graphcache.vendor.layouts import VendorError, panics_raised
from graphcache.vendor.text import named_nodes, readable, whole
from tests.support.vendor_texts import LOGSUMEXP, NO_CC, NO_HEADERS, OLDER_NO_HEADERS, OLDER_SORT, SORT


def test_an_operator_that_cannot_be_imported() -> None:
    first, *others = readable(LOGSUMEXP).splitlines()
    assert first == "failed to compile: failed to import dfg: Not importable for all cases, logsumexp"
    assert others[0] == "aten_err: Not importable, logsumexp"
    assert len(others) == 5
    assert named_nodes(LOGSUMEXP) == ("mul", "logsumexp")


def test_causes_come_one_a_line() -> None:
    assert readable(SORT) == (
        "failed to lower dfg: while verifying sort\n"
        "caused by: Lowering Deadline Violation: Aten(sort) is allowed up to dfg, found in primitive."
    )
    assert named_nodes(SORT) == ("sort",)


def test_an_exception_in_debug_form_is_unwrapped() -> None:
    assert readable(NO_CC) == "failed to compile dfg to Runnable: No such file or directory (os error 2)"
    lines = readable(NO_HEADERS).splitlines()
    assert lines[0] == "failed to compile dfg to Runnable: failed to compile a temporary .c file"
    assert (
        "      /usr/include/features-time64.h:20:10: fatal error: bits/wordsize.h: No such file or directory" in lines
    )
    assert lines[-2:] == ["caused by: failed to run cc", "caused by: process exited unsuccessfully: exit status: 1"]


def test_a_text_that_says_nothing_has_its_cause_beside_it() -> None:
    assert str(VendorError(whole(failed_as_in_2026_2(OLDER_NO_HEADERS)))).splitlines()[:2] == [
        "failed to compile the graph: failed to compile a temporary .c file",
        "caused by: In file included from /usr/include/features.h:392,",
    ]
    with pytest.raises(VendorError, match=r"^failed to compile the graph: unsupported EDF node"), panics_raised():
        raise failed_as_in_2026_2(OLDER_SORT)


def failed_as_in_2026_2(cause: str) -> Exception:
    error = RuntimeError("failed to compile the graph")
    error.__cause__ = RuntimeError(cause)
    return error


@pytest.mark.parametrize("text", [LOGSUMEXP, SORT, NO_HEADERS, NO_CC])
def test_nothing_of_one_run_is_left(text: str) -> None:
    for noise in ("PyErr", "Location:", "cache at", "/tmp", "0x7f", "\\n", "graph():", "source:"):
        assert noise not in readable(text)


@pytest.mark.parametrize("text", ["", "refused", "two\nlines", "value: x { type: y }", "Caused by: nothing"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert readable(text) == text
    assert named_nodes(text) == ()


def test_an_error_of_the_vendors_has_it() -> None:
    error = VendorError(SORT)
    assert str(error) == readable(SORT)
    assert error.nodes == ("sort",)
