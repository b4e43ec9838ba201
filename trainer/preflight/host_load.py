"""The host's load before a run: a step's host half waits for CPUs that another job keeps busy.

The load is Linux' one-minute average (`proc(5)`, /proc/loadavg): processes that run or wait for a CPU or a disk, on the
whole host, also as seen from a container.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from graphcache.errors import GraphcacheError, UsageError

LOADAVG = Path("/proc/loadavg")
POLL_SECS = 5.0
UNITS = {"s": 1, "m": 60, "h": 3600}


class HostLoadError(GraphcacheError):
    """The host is busier than the run allows, or cannot tell how busy it is."""

    name = "host-load"


def host_load() -> float:
    """The one-minute load average. Raises HostLoadError where it cannot be told, which counts as busy."""
    try:
        return float(LOADAVG.read_text().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise HostLoadError(
            f"{LOADAVG} does not tell the host's load: {error}", hint="leave out --wait-for-load to run all the same"
        ) from error


def parse_wait(text: str) -> float:
    """`90`, `90s`, `30m`, `1h` as seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UsageError(f"--wait is {text!r}", hint="it is a number of seconds, minutes or hours: 90s, 30m, 1h")
    return float(match[1]) * UNITS[match[2] or "s"]


def check_load(limit: float | None) -> float | None:
    """The load now; None where no limit is asked for. Raises HostLoadError above `limit`."""
    if limit is None:
        return None
    load = host_load()
    if load > limit:
        raise HostLoadError(
            f"the host's load is {load:g}, above --wait-for-load {limit:g}",
            hint="a run waits for up to --wait; or give a higher limit",
        )
    return load


def wait_for_load(limit: float | None, wait_secs: float, say: Callable[[str], None]) -> float | None:
    """Wait until the load is `limit` or less; returns it, None where no limit is asked for.

    say: gets a line when waiting begins, and one a minute

    Raises HostLoadError after `wait_secs`.
    """
    if limit is None:
        return None
    began = time.monotonic()
    said = -1
    while (load := host_load()) > limit:
        waited = time.monotonic() - began
        if waited >= wait_secs:
            raise HostLoadError(
                f"the host's load is {load:g} and did not come down to --wait-for-load {limit:g} in {wait_secs:g} s",
                hint="wait longer (--wait), give a higher limit, or run on another host",
            )
        if int(waited // 60) > said:
            said = int(waited // 60)
            say(f"waiting  the host's load is {load:g}; the run begins at {limit:g} or less")
        time.sleep(min(POLL_SECS, wait_secs - waited))
    return load
