"""The step-time model against emulated steps: device time slept, updates real, the host as busy as it is.

A row's costs come from steps of another layout (REFERENCE), by turns with the row's, and from what the host's AdamW
does with as many workers as the row has, before and after (as `trainer calibrate` measures it); never from the row's
own steps. In loaded rows processes of this benchmark keep every CPU busy in all of these.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median

from graphcache.process.limits import available_cpus
from tests.bench.emulated_run import EmulatedRun, Layout, card
from tests.bench.measure import Result
from trainer.calibrate import idle_delay_secs, update_secs_of
from trainer.plan.calibration import Calibration
from trainer.plan.contention import alone
from trainer.plan.run_costs import from_run
from trainer.plan.timeline import play

REFERENCE = Layout(devices=1, resident=2, workers=2, accum=2)
# Steps of a row that are measured, fewer where a step is long; before each, and after the last, one of the reference.
STEPS, LONG_STEPS = 7, 3
HOST_SECS = 1.0
AIM = 0.10
IDLE = (
    Layout(1, 0, 1, 4),
    Layout(1, 0, 2, 1),
    Layout(1, 0, 3, 4),
    Layout(1, 4, 2, 4),
    Layout(1, 8, 1, 16),
    Layout(1, 8, 4, 4),
    Layout(2, 0, 2, 4),
    Layout(2, 4, 4, 1),
    Layout(2, 8, 2, 16),
    Layout(4, 0, 2, 4),
    Layout(4, 4, 1, 4),
    Layout(4, 4, 4, 16),
)
LOADED = (Layout(1, 0, 2, 4), Layout(1, 8, 1, 4), Layout(2, 4, 2, 4), Layout(4, 4, 2, 1))
# Computes and copies until what has started it ends, also when that is killed.
BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
data = bytearray(1 << 26)
while True:
    bytes(data), sum(range(100000))
"""


@dataclass(frozen=True)
class Row:
    layout: Layout
    loaded: bool
    predicted_secs: float
    measured_secs: Sequence[float]
    host_load: float

    @property
    def error(self) -> float:
        return self.predicted_secs / median(self.measured_secs) - 1

    def line(self) -> str:
        layout, host = self.layout, "loaded" if self.loaded else "idle"
        steps = ", ".join(f"{each:.2f}" for each in self.measured_secs)
        return (
            f"| {layout.devices} | {layout.resident} | {layout.workers} | {layout.accum} | {host}"
            f" | {self.predicted_secs:.2f} s | {median(self.measured_secs):.2f} s | {self.error:+.1%} | {steps}"
            f" | {self.host_load:.1f} |"
        )


def measure() -> list[Result]:
    """A row for each layout; prints the table as it goes."""
    print("| devices | resident | workers | accum | host | predicted | measured | error | steps, s | load |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    return [_result(row) for row in rows()]


def rows() -> Iterator[Row]:
    """One after the other; the loaded ones after the idle ones."""
    with EmulatedRun(REFERENCE) as reference:
        for layout in IDLE:
            yield row(reference, layout, loaded=False)
        with busy_host():
            for layout in LOADED:
                yield row(reference, layout, loaded=True)


def row(reference: EmulatedRun, layout: Layout, *, loaded: bool) -> Row:
    """Steps of the row and of what its costs come from by turns: the load of a shared host changes by the second."""
    reference.call_times.begin()
    records, found, hosts = [], [], [_host(layout)]
    with EmulatedRun(layout) as measured:
        for _ in range(LONG_STEPS if layout.accum > 4 else STEPS):
            records += reference.do(1)
            found += [record["step_secs"] for record in measured.do(1)]
    records += reference.do(1)
    hosts.append(_host(layout))
    host = _calibration(hosts)
    costs = from_run(reference.step, [{}, *records], REFERENCE.workers, reference.call_times.mean_secs())
    costs = alone(reference.step, costs, host.busy_call_secs(REFERENCE.workers))
    played = play(measured.step, host.of_host(costs, layout.workers), in_turns=measured.in_turns)
    made = Row(layout, loaded, played.step_secs, found, os.getloadavg()[0])
    print(made.line(), flush=True)
    return made


def _host(layout: Layout) -> dict[int, tuple[float, float]]:
    """A worker's seconds an element and another thread's wait for a CPU, with as many workers as reference and row."""
    with card("emulator") as device:
        counts = sorted({1, REFERENCE.workers, layout.workers})
        return {count: update_secs_of(device, "bfloat16", count, HOST_SECS) for count in counts} | {
            0: (0.0, idle_delay_secs(HOST_SECS / 2))
        }


def _calibration(hosts: Sequence[Mapping[int, tuple[float, float]]]) -> Calibration:
    """The means of them."""
    update_secs, delay_secs = (
        {count: fmean(host[count][number] for host in hosts) for count in hosts[0]} for number in (0, 1)
    )
    del update_secs[0]
    return Calibration(
        backend="emulator",
        dtype="bfloat16",
        update_secs=update_secs,
        delay_secs=delay_secs,
        upload_bytes_per_sec=None,
        download_bytes_per_sec=None,
        device=None,
        shapes={},
        call_secs={},
        host={},
        not_measured=(),
    )


@contextmanager
def busy_host() -> Iterator[None]:
    """A process for each CPU that computes and copies."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) for _ in range(available_cpus())]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _result(row: Row) -> Result:
    layout = row.layout
    name = f"{layout.devices} devices, {layout.resident} resident, {layout.workers} workers, accum {layout.accum}"
    name += ", loaded" if row.loaded else ""
    return Result(f"step time, {name}: error", abs(row.error), AIM, True, f"{row.predicted_secs:.2f} s predicted")
