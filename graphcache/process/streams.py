"""A command's standard streams, which may be closed, lead to a reader that has gone, or lie on a full disk.

Nothing here prints but `report_warning`; errors are `graphcache.process.command`'s.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from graphcache.process.shown import printable

# The reader of our output (`graphcache ls | head`) has gone; what a process killed by SIGPIPE would show.
PIPE_CLOSED = 128 + signal.SIGPIPE


def open_closed_streams() -> None:
    """A standard stream that is closed (`2>&-`) leads nowhere, where print would take it for standard output.

    In the order of their descriptors, since each takes the lowest that is free: else the next file opened would have
    it, and get what native code writes there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def output_survives_any_text() -> None:
    """Let no file or tensor name that the terminal's encoding lacks end a command: it is escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")


def report_warning(name: str, message: str) -> None:
    """Print `warning[name]: message` for people, on stderr, which may be gone. Control characters are escaped."""
    with suppress(OSError):
        print(f"warning[{name}]: {printable(message)}", file=sys.stderr)


def end_output() -> None:
    """What cannot be written goes nowhere, or the interpreter's own flush at exit fails too and makes the code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
