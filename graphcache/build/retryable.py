"""Whether a failed compile is worth another try: what the machine caused is, what the compiler refused is not.

A failure that is not waits for `build --retry`; one that is, for the next build. In doubt it is the compiler's, or a
graph that it cannot take would be compiled for minutes by every build.
"""

from __future__ import annotations

import errno
import re

from graphcache.errors import ToolchainError
from graphcache.toolchain.base import CompileError

_ERRNOS = (errno.ENOSPC, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EDQUOT)
# `(os error 2)` is how Rust ends whatever the operating system refused; the others are said without it as well.
_WORDS = re.compile(
    r"\(os error \d+\)|failed to run cc"
    r"|No space left on device|Cannot allocate memory|Too many open files|Disk quota exceeded"
)
# A compiler that ends well and leaves half a file met one of those without a word.
_HALF_WRITTEN = "half-written"


def is_retryable(error: BaseException) -> bool:
    """By `error` and whatever caused it."""
    return _is_the_machines(error) or (error.__cause__ is not None and is_retryable(error.__cause__))


def _is_the_machines(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in _ERRNOS:
        return True
    if isinstance(error, ToolchainError) and not isinstance(error, CompileError):
        return True
    return getattr(error, "name", "") == _HALF_WRITTEN or _WORDS.search(str(error)) is not None
