"""Measures what this host does in a step, with the code that a run does it with: copies, and AdamW by worker count."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
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
from trainer.plan.costs import StepCosts
from trainer.plan.sources import config_of, costs_of_run, settings_of, shapes_of
from trainer.preflight.host_load import HostLoadError, host_load
from trainer.report.runs import read_runs

Say = Callable[[str], None]
COPY_BYTES = 16 << 20
# A parameter of one job: its gradient, weight and float32 state, twice the weight while a new one is installed.
PARAMETER_ELEMENTS = JOB_ELEMENTS
PARAMETER_BYTES = PARAMETER_ELEMENTS * (12 + 4 * 3)
# Shares of the time that there is.
COPY_SHARE = 0.1


def calibrate(run: Path | None, *, backend: str, dtype: str, update_workers: int, secs: float, say: Say) -> Calibration:
    """Measure for about `secs` seconds; `say` gets a line for each result as it comes.

    run: whose device time by graph and by pass is taken over
    Raises ReportError and CostsError for a run that tells nothing, and what opening `backend` raises.
    """
    share_one_heap()
    load = _load()
    device, shapes, call_secs = (None, {}, {}) if run is None else _device(run, say)
    not_measured = [] if device is not None else ["device time: give a RUN; a plan takes a data sheet's"]
    counts = worker_counts(min(update_workers, available_cpus()))
    if update_workers > counts[-1]:
        not_measured.append(f"{update_workers} update workers: there are {counts[-1]} CPUs, and a run starts no more")
    with ExitStack() as opened:
        card = opened.enter_context(closing(_open(backend)))
        uploads, downloads = _copies(card, secs * COPY_SHARE)
        if downloads is None:
            not_measured.append("copies to a card: --backend cpu has none")
        say(f"copies   {_rate(uploads)} to {card.name}, {_rate(downloads)} from it")
        update_secs = {}
        for count in counts:
            left = secs * (1 - 2 * COPY_SHARE) / len(counts)
            update_secs[count] = _update_secs(card, dtype, count, left)
            say(f"updates  {count} workers: {count / update_secs[count] / 1e9:.2f} G elements/s")
    return Calibration(
        backend=backend,
        dtype=dtype,
        update_secs=update_secs,
        upload_bytes_per_sec=None if downloads is None else uploads,
        download_bytes_per_sec=downloads,
        device=device,
        shapes=shapes,
        call_secs=call_secs,
        host={
            "cpus": available_cpus(),
            "arch": platform.machine(),
            "load_before": load,
            "load_after": _load(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        },
        not_measured=tuple(not_measured),
    )


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


def _device(folder: Path, say: Say) -> tuple[StepCosts, Mapping[str, Any], Mapping[str, float]]:
    """What a run's passes cost, what that holds for, and its seconds of a call by graph."""
    (run,) = read_runs([folder])
    settings = settings_of(run)
    if not settings.model.exists():
        raise ConfigError(f"{folder} was a run of {settings.model}, which is not here", hint="its config.json is read")
    model = ModelConfig.from_json(config_of(settings.model))
    _, costs = costs_of_run(run, model)
    call_secs = dict(run.prediction.get("call_secs", {}))
    passes = ", ".join(f"{kind} {1e3 * secs:.2f} ms" for kind, secs in sorted(costs.pass_secs.items()))
    say(f"device   {costs.basis}: {passes}; {len(call_secs)} graphs")
    return costs, shapes_of(model, settings), call_secs


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
    uploads, downloads = [], []
    end = time.perf_counter() + 2 * secs
    while time.perf_counter() < end or len(uploads) < 3:
        began = time.perf_counter()
        buffer = card.upload(host, "copy")
        uploaded = time.perf_counter()
        card.take(buffer)
        uploads.append(uploaded - began)
        downloads.append(time.perf_counter() - uploaded)
    return COPY_BYTES / median(uploads), None if card.pool_bytes is None else COPY_BYTES / median(downloads)


def _update_secs(card: DeviceBackend, dtype: str, workers: int, secs: float) -> float:
    """A worker's median seconds for one element, over steps of AdamW for about `secs`, the first one left out."""
    fitting = int(available_memory_bytes() // 2 // PARAMETER_BYTES)
    unit = MadeUpUnit(card, dtype, max(1, min(fitting, max(16, 4 * workers))))
    found: list[float] = []
    with closing(AdamW(AdamSettings(), workers=workers, dtype=dtype, tile_elements=PARAMETER_ELEMENTS)) as optimizer:
        optimizer.adopt(unit, unit.states())
        end = time.perf_counter() + secs
        while time.perf_counter() < end or len(found) < 2:
            unit.make_gradients()
            optimizer.begin_step(len(found) + 1, 1e-5)
            optimizer.submit(unit)
            found.append(optimizer.finish_step().busy_secs)
        unit.drop_weights()
    return median(found[1:]) / (len(unit.parameters) * PARAMETER_ELEMENTS)


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
