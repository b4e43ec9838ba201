"""Measures what this host does in a step, with the code that a run does it with: copies, and AdamW by worker count."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from graphcache.artifact import Artifact
from graphcache.device.backend_name import POOL_BYTES
from graphcache.device.base import Buffer, DeviceBackend
from graphcache.device.select import choose, open_devices
from graphcache.errors import MissingGraphsError
from graphcache.graph import Graph
from graphcache.process.limits import available_cpus, available_memory_bytes
from trainer.architecture.config import ModelConfig
from trainer.config import ConfigError
from trainer.device.cpu import CpuBackend
from trainer.host.heap import share_one_heap
from trainer.host.pages import empty
from trainer.optim.adamw import AdamW
from trainer.optim.base import AdamState, Parameter, Piece
from trainer.optim.offload import JOB_ELEMENTS
from trainer.optim.scalars import AdamSettings
from trainer.plan.calibration import Calibration
from trainer.plan.contention import alone
from trainer.plan.costs import StepCosts
from trainer.plan.sources import config_of, costs_of_run, settings_of, shapes_of
from trainer.preflight.host_load import HostLoadError, host_load
from trainer.report.runs import read_runs
from trainer.step.schedule import Step

Say = Callable[[str], None]
COPY_BYTES = 16 << 20
# A parameter of one job: its gradient, weight and float32 state, twice the weight while a new one is installed.
PARAMETER_ELEMENTS = JOB_ELEMENTS
PARAMETER_BYTES = PARAMETER_ELEMENTS * (12 + 4 * 3)
# Shares of the time that there is.
COPY_SHARE, DELAY_SHARE = 0.1, 0.05
# What a call's thread sleeps at a time while a device works: so its wait for a CPU is measured.
SLEEP_SECS = 5e-4


def calibrate(run: Path | None, *, backend: str, dtype: str, update_workers: int, secs: float, say: Say) -> Calibration:
    """Measure for about `secs` seconds; `say` gets a line for each result as it comes.

    run: whose device time by graph and by pass is taken over
    Raises ReportError and CostsError for a run that tells nothing, and what opening `backend` raises.
    """
    share_one_heap()
    load = _load()
    of_run = None if run is None else _device(run, say)
    not_measured = [] if of_run is not None else ["device time: give a RUN; a plan takes a data sheet's"]
    counts = worker_counts(min(update_workers, available_cpus()))
    if update_workers > counts[-1]:
        not_measured.append(f"{update_workers} update workers: there are {counts[-1]} CPUs, and a run starts no more")
    with ExitStack() as opened:
        card = opened.enter_context(closing(_open(backend)))
        uploads, downloads = _copies(card, secs * COPY_SHARE)
        if downloads is None:
            not_measured.append("copies to a card: --backend cpu has none")
        say(f"copies   {_rate(uploads)} to {card.name}, {_rate(downloads)} from it")
        update_secs, delay_secs = {}, {0: idle_delay_secs(secs * DELAY_SHARE)}
        for count in counts:
            left = secs * (1 - 2 * COPY_SHARE - DELAY_SHARE) / len(counts)
            update_secs[count], delay_secs[count] = update_secs_of(card, dtype, count, left)
            say(
                f"updates  {count} workers: {count / update_secs[count] / 1e9:.2f} G elements/s,"
                f" others wait {1e3 * delay_secs[count]:.2f} ms for a CPU, {1e3 * delay_secs[0]:.2f} without updates"
            )
    calibration = Calibration(
        backend=backend,
        dtype=dtype,
        update_secs=update_secs,
        delay_secs=delay_secs,
        upload_bytes_per_sec=None if downloads is None else uploads,
        download_bytes_per_sec=downloads,
        device=None,
        shapes={},
        call_secs={},
        host={
            "cpus": available_cpus(),
            "arch": platform.machine(),
            "load_before": load,
            "load_after": _load(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        },
        not_measured=tuple(not_measured),
    )
    return calibration if of_run is None else _with_device(calibration, of_run)


def worker_counts(most: int) -> list[int]:
    """1 to 8 one by one, then powers of two, and `most`."""
    return sorted({count for count in range(1, most + 1) if count <= 8 or count & (count - 1) == 0} | {most})


def _rate(bytes_per_sec: float | None) -> str:
    return "no copy" if bytes_per_sec is None else f"{bytes_per_sec / 1e9:.1f} GB/s"


def _load() -> float | None:
    try:
        return host_load()
    except HostLoadError:
        return None


def _with_device(host: Calibration, of_run: OfRun) -> Calibration:
    """What the run's calls waited for a CPU is taken off where it was measured here with as many workers."""
    device = of_run.costs
    if device.workers in host.update_secs:
        device = alone(of_run.step, device, host.busy_call_secs(device.workers))
    return replace(host, device=device, shapes=of_run.shapes, call_secs=of_run.call_secs)


@dataclass(frozen=True)
class OfRun:
    """What a run's passes cost, what that holds for, and its seconds of a call by graph."""

    step: Step
    costs: StepCosts
    shapes: Mapping[str, Any]
    call_secs: Mapping[str, float]


def _device(folder: Path, say: Say) -> OfRun:
    (run,) = read_runs([folder])
    settings = settings_of(run)
    if not settings.model.exists():
        raise ConfigError(f"{folder} was a run of {settings.model}, which is not here", hint="its config.json is read")
    model = ModelConfig.from_json(config_of(settings.model))
    step, costs = costs_of_run(run, model)
    call_secs = dict(run.prediction.get("call_secs", {}))
    passes = ", ".join(f"{kind} {1e3 * secs:.2f} ms" for kind, secs in sorted(costs.pass_secs.items()))
    say(f"device   {costs.basis}: {passes}; {len(call_secs)} graphs")
    return OfRun(step, costs, shapes_of(model, settings), call_secs)


def _open(backend: str) -> DeviceBackend:
    """The first of its devices."""
    devices = open_devices(choose(backend), _no_artifact, pool_bytes=POOL_BYTES, cpu=CpuBackend)
    for other in devices[1:]:
        other.close()
    return devices[0]


def _no_artifact(graph: Graph) -> Artifact:
    raise MissingGraphsError(f"{graph.name}: a calibration calls no graphs")


def _copies(card: DeviceBackend, secs: float) -> tuple[float, float | None]:
    """Bytes a second to and from the device, `secs` each; None where what is taken is not copied."""
    host = torch.ones(COPY_BYTES // 2, dtype=torch.bfloat16)
    uploads: list[float] = []
    downloads: list[float] = []
    end = time.perf_counter() + 2 * secs
    while time.perf_counter() < end or len(uploads) < 3:
        began = time.perf_counter()
        buffer = card.upload(host, "copy")
        uploaded = time.perf_counter()
        card.take(buffer)
        uploads.append(uploaded - began)
        downloads.append(time.perf_counter() - uploaded)
    return COPY_BYTES / median(uploads), None if card.pool_bytes is None else COPY_BYTES / median(downloads)


def idle_delay_secs(secs: float) -> float:
    """Mean seconds that a thread which slept waits for a CPU, while nothing updates here."""
    with Sleeper() as sleeper:
        time.sleep(secs)
    return sleeper.mean_delay_secs


class Sleeper:
    """A thread that sleeps and wakes inside the block, as one does that waits for a device's calls."""

    def __init__(self) -> None:
        self._delays: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sleep, name="sleeper", daemon=True)

    def __enter__(self) -> Sleeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def mean_delay_secs(self) -> float:
        return fmean(self._delays)

    def _sleep(self) -> None:
        while not self._delays or not self._ended.is_set():
            began = time.perf_counter()
            time.sleep(SLEEP_SECS)
            self._delays.append(time.perf_counter() - began - SLEEP_SECS)


def update_secs_of(card: DeviceBackend, dtype: str, workers: int, secs: float) -> tuple[float, float]:
    """A worker's median seconds for one element, over steps of AdamW for about `secs`, the first one left out; and the
    mean seconds that another thread waits for a CPU meanwhile."""
    fitting = int(available_memory_bytes() // 2 // PARAMETER_BYTES)
    unit = MadeUpUnit(card, dtype, max(1, min(fitting, max(16, 4 * workers))))
    found: list[float] = []
    delays: list[float] = []
    with closing(AdamW(AdamSettings(), workers=workers, dtype=dtype, tile_elements=PARAMETER_ELEMENTS)) as optimizer:
        optimizer.adopt(unit, unit.states())
        end = time.perf_counter() + secs
        while time.perf_counter() < end or len(found) < 2:
            unit.make_gradients()
            optimizer.begin_step(len(found) + 1, 1e-5)
            with Sleeper() as sleeper:
                optimizer.submit(unit)
                found.append(optimizer.finish_step().busy_secs)
            delays.append(sleeper.mean_delay_secs)
        unit.drop_weights()
    return median(found[1:]) / (len(unit.parameters) * PARAMETER_ELEMENTS), fmean(delays[1:])


class MadeUpUnit:
    """Matrices of one job each, whose gradients and weights are on a device as a layer's are."""

    name, prefix = "made up", ""

    def __init__(self, backend: DeviceBackend, dtype: str, count: int) -> None:
        self.backend = backend
        self.parameters = tuple(Parameter(f"matrix {i}", (PARAMETER_ELEMENTS // 1024, 1024)) for i in range(count))
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._gradient = empty((PARAMETER_ELEMENTS,), self._dtype).fill_(1e-3)
        self._gradients: list[Buffer] = []
        self._new: dict[str, Tensor] = {}
        self._weights: dict[str, Buffer] = {}

    def states(self) -> dict[str, AdamState]:
        def zeros() -> Tensor:
            return empty((PARAMETER_ELEMENTS,), torch.float32).zero_()

        return {parameter.name: AdamState(zeros(), zeros(), zeros()) for parameter in self.parameters}

    def make_gradients(self) -> None:
        self._gradients = [self.backend.upload(self._gradient, parameter.name) for parameter in self.parameters]

    def drop_weights(self) -> None:
        self.backend.free(*self._weights.values())
        self._weights = {}

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        gradients, self._gradients = self._gradients, []
        yield from zip((parameter.name for parameter in self.parameters), gradients, strict=True)

    def place(self, name: str) -> Tensor:
        self._new[name] = empty((PARAMETER_ELEMENTS,), self._dtype)
        return self._new[name]

    def install(self, name: str) -> None:
        self._weights[name] = self.backend.upload(self._new.pop(name), name, lent=True)
