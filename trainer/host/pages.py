"""Host memory for large tensors: mapped for each, and kept for the next one of its size.

torch takes a tensor's memory from the C library's heap. glibc (2.36 here) cannot give an aligned block's memory to the
next aligned block of the same size, so where tensors come and go the heap grows: by 60 MB a step in a run of
SmolLM2-135M, to 1.4 times of what the step needed. Memory that is mapped anew each time is zeroed by the system first.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

# Smaller tensors are left to the heap; larger ones than these are given back to the system at once, since few others
# are of their size.
SMALLEST_BYTES = 64 << 10
LARGEST_KEPT_BYTES = 8 << 20
HUGE_PAGE_BYTES = 2 << 20

_free: defaultdict[int, list[memoryview]] = defaultdict(list)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor of any values. Any thread."""
    size = math.prod(shape) * dtype.itemsize
    if size < SMALLEST_BYTES:
        return torch.empty(shape, dtype=dtype)
    try:
        memory = _free[size].pop()
    except IndexError:
        if size > LARGEST_KEPT_BYTES:
            give_back()
        memory = _map(size)
    lent = memory[:]
    if size <= LARGEST_KEPT_BYTES:
        # torch holds `lent` for as long as there is a tensor, or a view of it.
        weakref.finalize(lent, _free[size].append, memory)
    return torch.frombuffer(lent, dtype=dtype).view(shape)


def copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous copy, of another dtype if one is given. Any thread."""
    return empty(tensor.shape, dtype or tensor.dtype).copy_(tensor)


def described(array: Tensor) -> str:
    """How an array lies in memory, for messages about one that code cannot be given."""
    return f"{array.dtype} {tuple(array.shape)} with strides {array.stride()} on {array.device}"


def give_back() -> None:
    """What is kept for later tensors goes back to the system."""
    for kept in list(_free.values()):
        kept.clear()


def _map(size: int) -> memoryview:
    """New memory. Huge pages where it holds whole ones: faster to get and, for the update, to pass over."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if size < HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(mmap.mmap(-1, size, flags=flags))
    # Begun at a huge page's beginning; what is left of what was mapped for that is never touched.
    mapped = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=flags)
    begin = -torch.frombuffer(mapped, dtype=torch.uint8, count=1).data_ptr() % HUGE_PAGE_BYTES
    mapped.madvise(mmap.MADV_HUGEPAGE, begin, size // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)
    return memoryview(mapped)[begin : begin + size]
