"""A command's standard streams, which may be closed, lead to a reader that has gone, or lie on a full disk.

Nothing here prints but `report_error` and `report_warning`, for the two commands.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

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


def report_error(facts: Mapping[str, str], exit_code: int, *, as_json: bool, shown: Callable[[str], str] = str) -> int:
    """Say what happened, with `name`, `message` and `hint` of `facts`: as JSON on stdout, or to people on stderr.

    shown: what a terminal is given of a text
    Returns `exit_code`, or PIPE_CLOSED when the reader of the JSON has gone.
    """
    try:
        if as_json:
            print(json.dumps({"error": dict(facts), "exit_code": exit_code}, indent=2, sort_keys=True), flush=True)
            return exit_code
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError:  # a full disk: people may still read it
        pass
    with suppress(OSError):
        print(f"error[{facts['name']}]: {shown(facts['message'])}", file=sys.stderr)
        if facts["hint"]:
            print(f"  hint: {shown(facts['hint'])}", file=sys.stderr)
    return exit_code


def report_warning(name: str, message: str) -> None:
    """`warning[name]: message` for people, on stderr, which may be gone."""
    with suppress(OSError):
        print(f"warning[{name}]: {message}", file=sys.stderr)


def end_output() -> None:
    """What cannot be written goes nowhere, or the interpreter's own flush at exit fails too and makes the code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
