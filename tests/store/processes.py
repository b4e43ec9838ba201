"""Other processes for tests of the store: forked, so that two hundred of them cost no imports."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def start(work: Callable[[], None], *, user: int | None = None) -> int:
    """Runs `work` in a child and returns its process id; the child ends with 0, or with 1 and a traceback."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """Waits for a child and returns its exit status; negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return finish(child)


def run_all(works: list[Callable[[], None]]) -> None:
    """Runs all at the same time; every one must end well."""
    assert [finish(child) for child in [start(work) for work in works]] == [0] * len(works)


def run_unprivileged(work: Callable[[], None]) -> None:
    """Runs `work` as a user whom permissions bind: nobody when we are root, else as we are."""
    assert finish(start(work, user=65534 if os.geteuid() == 0 else None)) == 0
