"""What furiosa-torch 2026.4.0 says when the machine fails under it, each made by failing it so; folders were shortened.

A compile of the kernel's refusals: `Os { code, kind, message }` is Rust's debug form of an error of the system.
"""

# ruff: noqa: E501

from __future__ import annotations

# The worker's folder was deleted. 2026.4 says `failed to compile`, and then the panic, twice.
FOLDER_GONE = 'failed to compile: Failed to create cache lock: CreateFailed(Os { code: 2, kind: NotFound, message: "No such file or directory" })\ncaused by: Failed to create cache lock: CreateFailed(Os { code: 2, kind: NotFound, message: "No such file or directory" })'
DISK_FULL = 'failed to compile: Failed to write cached output file: Os { code: 28, kind: StorageFull, message: "No space left on device" }'
NOT_WRITABLE = "Permission denied (os error 13)"
NO_DESCRIPTORS = "failed to compile dfg to Runnable: Too many open files (os error 24)"
NO_PROCESSES = 'failed to compile: failed to spawn thread: Os { code: 11, kind: WouldBlock, message: "Resource temporarily unavailable" }'
NO_CROSS_GCC = "failed to compile dfg to Runnable: No such file or directory (os error 2)"
# The process then ends by SIGABRT.
NO_MEMORY = "memory allocation of 1 bytes failed"

ALL = (FOLDER_GONE, DISK_FULL, NOT_WRITABLE, NO_DESCRIPTORS, NO_PROCESSES, NO_CROSS_GCC, NO_MEMORY)
