"""The guard that every allocation of device memory and every graph call goes through.

**Turns.** A compiled graph's call sets the runtime's memory type flag to DRAM_SHARED for a moment. Where the flag is
one for the whole process (2026.2), an allocation by another thread in that moment lands in a pool of 0 bytes and
fails. So there, allocations and calls take turns, over all devices of the process; copies do not. Where each thread
has its own flag, only the calls of one device take turns: a loaded graph has one scratch area.

**Bytes.** What live buffers, and programs, hold is counted against the pool before the device is asked, so the error
says which tensor did not fit and how much room there was.

The lock is held for one call into the runtime and never while anything waits for another thread, and nothing under it
comes back to a backend; so it needs no order among locks and cannot be left locked by an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from graphcache.errors import GraphcacheError

_process_turn = threading.Lock()


class DeviceMemoryError(GraphcacheError):
    """Something does not fit into a device's memory pool."""

    name = "device-memory"


class MemoryFlag(Protocol):
    """The runtime's memory type flag; `graphcache.runtime.furiosa` is one, the vendor's own."""

    def memory_is_shared(self) -> bool:
        """Whether an allocation by this thread would land in DRAM_SHARED now."""

    def shared_memory(self) -> AbstractContextManager[None]:
        """Sets the flag to DRAM_SHARED for a while, as a graph call does inside."""

    def flag_is_shared_by_threads(self) -> bool:
        """Whether what one thread sets, another reads."""


class Guard:
    """Turns and bytes of one device. All methods may be called from any thread."""

    def __init__(self, device: str, pool_bytes: int, *, flag_is_shared: bool) -> None:
        """`flag_is_shared`: what the runtime answered (`MemoryFlag.flag_is_shared_by_threads`), not its version."""
        self.device = device
        self.pool_bytes = pool_bytes
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self._count = threading.Lock()
        self._call_turn = _process_turn if flag_is_shared else threading.Lock()
        self._allocation_turn = _process_turn if flag_is_shared else nullcontext()

    def allocation(self) -> AbstractContextManager[object]:
        """To be held around each allocation of device memory, and not around a copy."""
        return self._allocation_turn

    def call(self) -> AbstractContextManager[object]:
        """To be held around each graph call, and around loading a graph, which allocates."""
        return self._call_turn

    @contextmanager
    def reserved(self, size_bytes: int, what: str) -> Iterator[None]:
        """Counts `size_bytes` for `what`, for good when the block ends well, else not at all.

        Raises DeviceMemoryError when the pool has no room for it, or when the device itself says so in the block.
        """
        self._reserve(size_bytes, what)
        try:
            yield
        except BaseException as error:
            self.release(size_bytes)
            if isinstance(error, torch.OutOfMemoryError):
                raise DeviceMemoryError(
                    f"{self.device} had no room for {what}, {size_bytes:,} bytes: {error}", hint=self._budget()
                ) from error
            raise

    def release(self, size_bytes: int) -> None:
        with self._count:
            self.bytes_in_use -= size_bytes
            assert self.bytes_in_use >= 0, f"{self.device}: more was freed than allocated"

    def _reserve(self, size_bytes: int, what: str) -> None:
        with self._count:
            if self.bytes_in_use + size_bytes > self.pool_bytes:
                raise DeviceMemoryError(
                    f"{what} needs {size_bytes:,} bytes and does not fit into {self.device}", hint=self._budget()
                )
            self.bytes_in_use += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)

    def _budget(self) -> str:
        free = self.pool_bytes - self.bytes_in_use
        return (
            f"its pool is {self.pool_bytes:,} bytes, {self.bytes_in_use:,} in use, {free:,} free; "
            "fewer resident layers, a smaller micro-batch or another card make room"
        )
