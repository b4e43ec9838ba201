"""Opening a file that somebody else may have put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """A folder, a pipe, a device."""


def open_regular(path: Path) -> int:
    """A descriptor of the regular file at `path`, for reading. Raises OSError, NotRegularError among them."""
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError("not a regular file")
    return descriptor
