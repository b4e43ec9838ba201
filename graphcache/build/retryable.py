"""Whether a failed compile is worth another try: it is, unless the failure is known to be a judgement of the graph.

A failure that is not waits for `build --retry`; one that is, for the next build. In doubt it is: that may cost every
build the minutes of a graph that the compiler cannot take, where else a disk that was full for a moment would leave out
a good graph for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphcache.vendor.judgement import is_judgement, names_the_machine

# Of an export that ends in torch's or the graph's own refusal. No record is kept of it: its next build exports again.
_EXPORT = "export"


def is_retryable(error: BaseException) -> bool:
    """By `error` and whatever caused it."""
    chain = list(_chain(error))
    if any(isinstance(one, OSError | MemoryError) or names_the_machine(str(one)) for one in chain):
        return True
    return not any(getattr(one, "name", "") == _EXPORT or is_judgement(str(one)) for one in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
