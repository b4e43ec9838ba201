"""Timing in interleaved pairs, so that a machine that slows down slows both sides."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """A measured figure and the aim that it is held against; `at_most` says on which side of the aim is good."""

    name: str
    figure: float
    aim: float
    at_most: bool
    detail: str

    @property
    def reached(self) -> bool:
        return self.figure <= self.aim if self.at_most else self.figure >= self.aim

    def line(self) -> str:
        sign = "<=" if self.at_most else ">="
        verdict = "reached" if self.reached else "NOT reached"
        return f"{self.name:<58} {self.figure:8.3f}  aim {sign} {self.aim:<7g} {verdict:<12} {self.detail}"


@dataclass(frozen=True)
class Run:
    """One finished command: wall seconds, CPU seconds of it and its children, the largest process's peak memory."""

    wall_secs: float
    cpu_secs: float
    peak_rss_bytes: int


def run_command(argv: Sequence[str], env: Mapping[str, str] | None = None, expect: Sequence[int] = (0,)) -> Run:
    """Run a command to its end, its output thrown away. Raises RuntimeError for an exit code not in `expect`."""
    started = time.perf_counter()
    process = subprocess.Popen(
        argv, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_secs = time.perf_counter() - started
    if process.returncode not in expect:
        raise RuntimeError(f"{' '.join(argv)}: exit code {process.returncode}: {stderr.decode()[-2000:]}")
    return Run(wall_secs, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def paired(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Medians of two timed functions (seconds each), called in turn after one warm-up of each."""
    ours()
    theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def timed(function: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def cpu_name() -> str:
    """The CPU, and what torch uses of it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    import torch

    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def peak_rss_bytes() -> int:
    """The largest resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def python(*args: str) -> list[str]:
    """A command line for this interpreter."""
    return [sys.executable, *args]
