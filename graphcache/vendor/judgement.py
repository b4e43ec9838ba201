"""Which failures are the compiler's own judgement of a program, the same every time: those whose words are known.

All others may be the machine's, and are worth another try: a machine fails in more ways than anybody can list. The
vendor's texts are of both releases; tests/support/vendor_texts.py has them as they came.
"""

from __future__ import annotations

import re

_JUDGEMENTS = re.compile(
    r"Not importable"  # an operator that it does not have
    r"|Lowering Deadline Violation|while lowering \w+|\bO\d+ lowering failed"
    r"|all tactics failed|tactic failure"
    r"|unsupported EDF node"
    r"|conflict between concrete labels|failed to execute DFG: .*invalid new shape"
    # What this program finds in a compiler's result.
    r"|the compiler gives \d+ of \d+ results"
    r"|the compiled graph has the (arguments|results) "
    r"|of the lowered graph differs from torch by|the lowered graph does not compute what its function does"
)
# How Rust says what the operating system refused, to people (`os error 28`) and in its debug form (`Os { code: 28`);
# what others say; and Rust's last word when there is no memory. A judgement that comes with one of these is none.
_MACHINE = re.compile(
    r"\(os error \d+\)|\bOs \{ code: \d+|failed to run cc|memory allocation of \d+ bytes failed|std::bad_alloc"
    r"|No space left on device|Cannot allocate memory|Too many open files|Disk quota exceeded"
    r"|Resource temporarily unavailable|Read-only file system|Input/output error|Stale file handle"
)


def is_judgement(text: str) -> bool:
    """Whether a failure that says `text` would be the same in any process on any machine."""
    return _JUDGEMENTS.search(text) is not None and not names_the_machine(text)


def names_the_machine(text: str) -> bool:
    """Whether `text`, a message or what a compiler printed, tells of something that the operating system refused."""
    return _MACHINE.search(text) is not None
