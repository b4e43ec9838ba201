"""Only the compiler's own judgement of a graph is the same every time. The texts are the vendor's, of both releases."""

from __future__ import annotations

import errno

import pytest

from graphcache.build.retryable import is_retryable
from graphcache.errors import GraphcacheError, ToolchainError
from graphcache.toolchain.base import CompileError
from graphcache.vendor.text import readable
from tests.support import machine_texts
from tests.support.vendor_texts import (
    EQUAL_SIZES,
    LOGSUMEXP,
    NEW_SHAPE,
    NO_CC,
    NO_HEADERS,
    OLDER_NO_HEADERS,
    OLDER_SORT,
    SORT,
)

JUDGED = (
    LOGSUMEXP,
    readable(LOGSUMEXP),
    SORT,
    OLDER_SORT,
    EQUAL_SIZES,
    NEW_SHAPE,
    "failed to lower dfg: while lowering TacticKernel",
    "failed to lower dfg: O34 lowering failed: TransposedLower[bf16]([]|[Broadcast=1]|[0_1=16384:576, 1_1=576:1])",
    "failed to compile: all tactics failed to compile",
    "the compiler gives 1 of 4 results: result 1 is a view of an argument",
    "the compiled graph has the arguments [], not [('float32', (4,))]",
    "result 0 of the lowered graph differs from torch by 1; allowed is 1e-05",
    "the lowered graph does not compute what its function does: result 0 at (0, 0)",
)


@pytest.mark.parametrize("text", JUDGED)
def test_what_the_compiler_says_of_the_graph_is_the_same_every_time(text: str) -> None:
    assert not is_retryable(CompileError(text))


@pytest.mark.parametrize("text", [*machine_texts.ALL, NO_HEADERS, NO_CC, OLDER_NO_HEADERS])
def test_what_the_machine_caused_is_worth_another_try(text: str) -> None:
    for error in (CompileError(text), RuntimeError(text)):
        assert is_retryable(error)
        outer = GraphcacheError("it failed")
        outer.__cause__ = error
        assert is_retryable(outer), "whatever was made of it"


@pytest.mark.parametrize("judged", JUDGED)
def test_a_judgement_that_comes_with_a_fault_of_the_machine_is_none(judged: str) -> None:
    """Each tactic may have failed for want of a file descriptor."""
    assert is_retryable(CompileError(f"{judged}\ncaused by: {machine_texts.NO_DESCRIPTORS}"))
    error = CompileError(judged)
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, "of another name"),
        OSError(errno.ENOENT, "a file that is not there just now"),
        MemoryError(),
        ToolchainError("the private compiler cache cannot be emptied"),
        ValueError("a fault of ours"),
        CompileError("thread 'main' panicked at a place that nobody has seen"),
    ],
)
def test_what_nobody_knows_is_worth_another_try(error: Exception) -> None:
    assert is_retryable(error)
