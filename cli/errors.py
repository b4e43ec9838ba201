"""The one place where errors become messages and exit codes (the codes are listed in `graphcache.errors`).

People read `error[name]: what happened` and a hint on stderr; with --json, stdout holds one JSON object instead. A
fault of the program itself is reported in two lines too, and GRAPHCACHE_DEBUG=1 adds the traceback to any error.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from cli.render import printable
from graphcache.errors import GraphcacheError
from graphcache.process.streams import PIPE_CLOSED, end_output, open_closed_streams, report_error

DEBUG_VARIABLE = "GRAPHCACHE_DEBUG"
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):
    """SIGTERM has arrived: raised in the main thread, so that `finally` blocks run before the process ends."""


def exit_code_of(command: Callable[[], Any], *, as_json: bool) -> int:
    """Run `command` and turn whatever it returns or raises into an exit code, reporting errors."""
    open_closed_streams()
    try:
        with _sigterm_raises():
            result = command()
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _report({"name": "interrupted", "message": "interrupted", "hint": ""}, INTERRUPTED, as_json)
    except Terminated:
        return _report({"name": "terminated", "message": "terminated by SIGTERM", "hint": ""}, TERMINATED, as_json)
    except click.Abort:
        return _report({"name": "aborted", "message": "aborted", "hint": ""}, INTERRUPTED, as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except Exception as error:
        return _report(*_facts(error), as_json)
    finally:
        end_output()


def _facts(error: Exception) -> tuple[dict[str, str], int]:
    """Name, message and hint of an error, and its exit code."""
    if isinstance(error, GraphcacheError):
        return error.as_json(), error.exit_code
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        return {"name": "usage", "message": error.format_message(), "hint": hint}, 2
    if isinstance(error, OSError):
        return {"name": "os", "message": str(error), "hint": "check the path, its permissions and the free space"}, 2
    place = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "name": "internal",
        "message": f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})",
        "hint": f"this is a fault of graphcache; {DEBUG_VARIABLE}=1 shows the traceback to report",
    }, 2


def _report(facts: dict[str, str], exit_code: int, as_json: bool) -> int:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
    return report_error(facts, exit_code, as_json=as_json, shown=printable)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def handler(*_: object) -> NoReturn:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
