"""The C library's heap, where it is glibc's: how much of what is freed it keeps.

Large tensors that the trainer makes are not in it (`trainer.host.pages`); Python's objects, torch's temporaries and
oneDNN's packed matrices are. One arena for all threads, since each update worker's own would keep the most that the
worker had ever held.
"""

from __future__ import annotations

import ctypes

from trainer.host import pages

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Larger blocks are new memory each time, smaller ones come from the heap again. By default both follow what was freed
# so far, up to 32 and 64 MB, and with them how much a run takes.
_MMAP_BYTES = 8 << 20
_KEPT_BYTES = 64 << 20


def share_one_heap() -> None:
    """Allocations here are few and large, so threads do not wait for each other."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def give_back_free_memory() -> None:
    """After tokenizing, and after reading weights: what these needed for a while goes back to the system."""
    pages.give_back()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
