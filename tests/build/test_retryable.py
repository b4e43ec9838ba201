"""What the machine caused is worth another try. The texts are those of the vendor, of both releases."""

from __future__ import annotations

import errno

import pytest

from graphcache.build.retryable import is_retryable
from graphcache.errors import GraphcacheError, ToolchainError
from graphcache.export.program import ExportError
from graphcache.toolchain.base import CompileError
from tests.support.vendor_texts import LOGSUMEXP, NO_CC, NO_HEADERS, OLDER_NO_HEADERS, SORT


@pytest.mark.parametrize(
    "error",
    [
        CompileError(NO_HEADERS),
        CompileError(NO_CC),
        RuntimeError(OLDER_NO_HEADERS),
        CompileError("failed to write: No space left on device (os error 28)"),
        CompileError("cannot open: Permission denied (os error 13)"),
        OSError(errno.EDQUOT, "of another name"),
        MemoryError(),
        ToolchainError("the private compiler cache cannot be emptied"),
    ],
)
def test_what_the_machine_caused_is(error: Exception) -> None:
    assert is_retryable(error)
    outer = GraphcacheError("it failed")
    outer.__cause__ = error
    assert is_retryable(outer), "whatever was made of it"


@pytest.mark.parametrize(
    "error",
    [
        CompileError(LOGSUMEXP),
        CompileError(SORT),
        CompileError("the compiler gives 1 of 4 results"),
        ExportError("a branch on values"),
        ValueError("a fault of ours"),
        OSError(errno.ENOENT, "a file that the graph's own code reads"),
    ],
)
def test_what_the_compiler_or_the_graph_is_to_blame_for_is_not(error: Exception) -> None:
    assert not is_retryable(error)
