"""What both commands, `graphcache` and `python -m trainer`, do around their work: streams, signals, errors, exit codes.

People read `error[name]: what happened` and a hint on stderr; with --json, stdout holds one JSON object instead. The
exit codes are listed in `graphcache.errors`. GRAPHCACHE_DEBUG=1 adds the traceback to any error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from graphcache.errors import GraphcacheError
from graphcache.process.inherited import put_right
from graphcache.process.shown import printable
from graphcache.process.streams import PIPE_CLOSED, end_output, open_closed_streams, output_survives_any_text

DEBUG_VARIABLE = "GRAPHCACHE_DEBUG"
INTERRUPTED = 128 + signal.SIGINT
_OURS = ("graphcache", "trainer", "cli")


class Ended(BaseException):
    """A signal asked the command to end. Raised in the main thread, so that `finally` blocks run first.

    Not an Exception, so that nothing handles it by accident. `exit_code` is what a process killed by the signal would
    show: 143 for SIGTERM, 130 for SIGINT.
    """

    name = "terminated"
    hint = ""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"ended by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class _Report:
    """What is said of an error: `facts` under --json, name, lines and hint to people."""

    facts: dict[str, Any]
    lines: Sequence[str]
    exit_code: int

    @classmethod
    def of(cls, name: str, message: str, hint: str = "", exit_code: int = 2) -> _Report:
        return cls({"name": name, "message": message, "hint": hint}, (message,), exit_code)


def run_command_line(program: click.Group, name: str, args: Sequence[str], *, trace_faults: bool = False) -> int:
    """Run one command line of `program` and return its exit code. Errors are reported, never raised.

    trace_faults: print the traceback of a fault of the program itself, which may not come again after hours
    """
    open_closed_streams()
    output_survives_any_text()
    try:
        with _sigterm_raises():
            put_right()
            returned = _invoke(program, name, list(args))
            sys.stdout.flush()
        return returned if isinstance(returned, int) else 0
    except BrokenPipeError:
        return PIPE_CLOSED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except (Exception, Ended, KeyboardInterrupt) as error:
        report = _report_of(error)
        with suppress(OSError):
            if os.environ.get(DEBUG_VARIABLE) == "1" or (trace_faults and report.facts["name"] == "internal"):
                traceback.print_exception(error)
        return _say(report, as_json="--json" in args)
    finally:
        end_output()


def _invoke(program: click.Group, name: str, args: list[str]) -> Any:
    """What the command returns. Not `program.main`: click would turn Ctrl-C and a closed pipe into its own codes."""
    try:
        with program.make_context(name, args) as context:
            return program.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code


def _report_of(error: BaseException) -> _Report:
    if isinstance(error, GraphcacheError):
        return _Report(error.as_json(), error.lines, error.exit_code)
    if isinstance(error, Ended):
        return _Report.of(error.name, str(error), error.hint, error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return _Report.of("interrupted", "interrupted", exit_code=INTERRUPTED)
    if isinstance(error, click.Abort):
        return _Report.of("aborted", "aborted", exit_code=INTERRUPTED)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        return _Report.of("usage", error.format_message(), f"see `{context.command_path} --help`" if context else "")
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(_OURS):
        hint = "pip install '.[furiosa,trainer]' in the checkout of graphcache installs what both commands need"
        return _Report.of("toolchain", f"{error.name} is not installed", hint)
    if isinstance(error, OSError):
        return _Report.of("os", str(error), "check the path, its permissions and the free space")
    place = traceback.extract_tb(error.__traceback__)[-1]
    return _Report.of(
        "internal",
        f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})",
        f"this is a fault of graphcache; {DEBUG_VARIABLE}=1 shows the traceback to report",
    )


def _say(report: _Report, *, as_json: bool) -> int:
    """JSON on stdout, or lines for people on stderr. Returns the exit code; PIPE_CLOSED when nobody reads the JSON."""
    try:
        if as_json:
            print(
                json.dumps({"error": report.facts, "exit_code": report.exit_code}, indent=2, sort_keys=True), flush=True
            )
            return report.exit_code
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError:  # a full disk: people may still read it
        pass
    first, *details = map(printable, report.lines)
    with suppress(OSError):
        print(f"error[{report.facts['name']}]: {first}", *details, sep="\n", file=sys.stderr)
        if report.facts["hint"]:
            print(f"  hint: {printable(report.facts['hint'])}", file=sys.stderr)
    return report.exit_code


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def handler(number: int, _frame: object) -> NoReturn:
        raise Ended(number)

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
