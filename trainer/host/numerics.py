"""Settings of torch that a run's numbers depend on: the same ones give the same bits on the same machine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphcache.process.limits import available_cpus

# OpenMP's two bounds that may be set from outside. The first may be a list, a number for each level of nesting.
_BOUNDS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT")


def thread_count() -> int:
    """Threads for a run: the CPUs available, fewer where OMP_NUM_THREADS or OMP_THREAD_LIMIT say so; at least 1.

    What is no positive number counts for nothing, as OpenMP has it.
    """
    asked = (os.environ.get(name, "").partition(",")[0].strip() for name in _BOUNDS)
    return min([available_cpus(), *(int(number) for number in asked if number.isdecimal() and int(number) > 0)])


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms, and `threads` for torch's own parallel loops: sums depend on how they are split.

    Fewer than `threads` where OpenMP gives no more. To be entered by the thread that computes.
    """
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    flags: Any = torch.utils.deterministic
    fill = flags.fill_uninitialized_memory
    # Not use_deterministic_algorithms: that loads torch's compiler, 1.5 s and 130 MB, to tell it too.
    torch.set_deterministic_debug_mode("error")
    # Deterministic mode would fill every new tensor with NaN first. Nothing here reads memory that it did not write.
    flags.fill_uninitialized_memory = False
    try:
        with whole_teams() as most:
            torch.set_num_threads(min(threads, most))
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_deterministic_debug_mode(before[1])
        flags.fill_uninitialized_memory = fill


@contextmanager
def whole_teams() -> Iterator[int]:
    """OpenMP gives this thread teams of the size that is asked for, up to the number that this gives.

    oneDNN splits a bfloat16 product by that size. In a smaller team, as under OMP_DYNAMIC on a busy machine, nobody
    computes what was meant for the threads that are missing: the product is wrong, and nothing says so.
    """
    openmp = ctypes.CDLL(None)
    if not hasattr(openmp, "omp_set_dynamic"):  # torch was built without
        yield sys.maxsize
        return
    dynamic = openmp.omp_get_dynamic()
    openmp.omp_set_dynamic(0)
    try:
        yield openmp.omp_get_thread_limit()
    finally:
        openmp.omp_set_dynamic(dynamic)
