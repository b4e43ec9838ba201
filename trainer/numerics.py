"""Settings of torch that a run's numbers depend on: the same ones give the same bits on the same machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms, and `threads` for torch's own parallel loops: sums depend on how they are split."""
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    flags: Any = torch.utils.deterministic
    fill = flags.fill_uninitialized_memory
    torch.set_num_threads(threads)
    # Not use_deterministic_algorithms: that loads torch's compiler, 1.5 s and 130 MB, to tell it too.
    torch.set_deterministic_debug_mode("error")
    # Deterministic mode would fill every new tensor with NaN first. Nothing here reads memory that it did not write.
    flags.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        flags.fill_uninitialized_memory = fill
