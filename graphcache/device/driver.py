"""What the vendor's driver needs of this machine besides a card, asked before anything is loaded."""

from __future__ import annotations

import ctypes
import errno
import os

from graphcache.runtime.furiosa import DRIVER_LIBRARY

# arch/x86/entry/syscalls/syscall_64.tbl; the vendor supports x86-64 only.
_IO_URING_SETUP = 425


def driver_problems() -> list[str]:
    """One sentence for each thing that is missing."""
    return [problem for problem in (_library_problem(), _io_uring_problem()) if problem]


def _library_problem() -> str:
    """The library is looked for as the vendor does: by name, where the dynamic linker looks."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError as error:
        return f"the driver's library cannot be loaded ({error}); it comes with the driver's packages"
    return ""


def _io_uring_problem() -> str:
    """Some seccomp profiles block io_uring, which the driver needs. A ring of no entries is asked for, and refused."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    ctypes.set_errno(0)
    call(_IO_URING_SETUP, 0, None)
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return f"io_uring is blocked ({os.strerror(code)}), and the driver needs it: allow it in the seccomp profile"
    return ""
