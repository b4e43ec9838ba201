"""What a command inherits from whoever started it, and must not: each fault of it is silent otherwise."""

from __future__ import annotations

import os
import signal

from graphcache.errors import MachineError
from graphcache.process.streams import report_warning

# Environment variables that something here reads; those of tests and benchmarks are theirs.
VARIABLES = frozenset(
    {
        "GRAPHCACHE_CARD_NODES",
        "GRAPHCACHE_CONFIG",
        "GRAPHCACHE_DEBUG",
        "GRAPHCACHE_DIR",
        "GRAPHCACHE_REMOTE",
        "GRAPHCACHE_REMOTE_TIMEOUT",
    }
    | {
        "GRAPHCACHE_LEASE_SECS",
        "GRAPHCACHE_SHARED",
        "GRAPHCACHE_SIGNING_KEY",
        "GRAPHCACHE_SIGNING_KEY_FILE",
        "GRAPHCACHE_TRUST",
    }
)
_PREFIX = "GRAPHCACHE_"
_OF_TESTS = ("GRAPHCACHE_BENCH_", "GRAPHCACHE_STORMS", "GRAPHCACHE_STRESS_", "GRAPHCACHE_TEST_")


def put_right() -> None:
    """Called first by each command.

    Exit codes of children come back: under an ignored SIGCHLD, as cron wrappers and some supervisors pass it on, all
    are 0. Variables that are misspelt are named. Raises MachineError where the current folder is no more.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in VARIABLES and not name.startswith(_OF_TESTS):
            report_warning(
                "variable", f"{name!a} is set, and nothing reads it; read are {', '.join(sorted(VARIABLES))}"
            )
    try:
        os.getcwd()
    except OSError as error:
        raise MachineError(
            f"the current folder cannot be told: {error.strerror}",
            hint="it was deleted or moved, or may not be entered: cd to one that is there",
        ) from error
