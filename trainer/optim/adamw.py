"""AdamW over the units of a model: the state of each parameter on the host or on its device, one step for all.

Host updates run in worker threads while backward goes on below; resident ones call graphs, so they run at once on the
thread of their device. With a clip norm every update waits for the norm of all gradients, which wait on the host in the
compute dtype: what the overlap saves is lost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial

from graphcache.device.base import DeviceBackend
from graphcache.process.limits import available_cpus
from trainer.config import RunConfig
from trainer.optim.base import AdamState, ResidentUnit, Unit, UpdateReport
from trainer.optim.clip import clip_factor, global_norm
from trainer.optim.kernel import kernels
from trainer.optim.offload import HostParameter, HostUpdate
from trainer.optim.resident import ResidentDevice, ResidentParameter, ResidentUpdate
from trainer.optim.scalars import AdamSettings, StepScalars
from trainer.optim.workers import Observer, Workers

Update = HostUpdate | ResidentUpdate


def worker_count(config: RunConfig) -> int:
    """Update workers of a run: those asked for, and no more than the container's CPUs, which they would only share."""
    return min(config.update_workers, available_cpus())


def open_optimizer(config: RunConfig) -> AdamW:
    """The optimizer of a run, its workers started."""
    return AdamW(
        AdamSettings(config.beta1, config.beta2, config.eps, config.weight_decay),
        workers=worker_count(config),
        dtype=config.dtype,
        tile_elements=config.catalog_options.tile_elements,
        clip_norm=config.clip_norm,
    )


class AdamW:
    """See `Optimizer`."""

    def __init__(
        self, settings: AdamSettings, *, workers: int, dtype: str, tile_elements: int, clip_norm: float | None = None
    ) -> None:
        self._settings = settings
        self._dtype = dtype
        self._tile_elements = tile_elements
        self._clip_norm = clip_norm
        kernels()  # so that the host's code is made before the first step
        self._workers = Workers(workers)
        self._parameters: dict[str, dict[str, HostParameter | ResidentParameter]] = {}
        self._devices: dict[int, ResidentDevice] = {}
        # Of this step.
        self._step, self._lr = 0, 0.0
        self._held: list[Update] = []
        self._square_sums: list[float] = []

    def observe(self, observer: Observer | None) -> None:
        """Have it hear of each job of a worker, from the worker's thread."""
        self._workers.observer = observer

    def adopt(self, unit: Unit, states: Mapping[str, AdamState]) -> None:
        self._parameters[unit.name] = {
            parameter.name: ResidentParameter(unit, parameter, states[parameter.name], self._device(unit.backend))
            if isinstance(unit, ResidentUnit) and unit.resident and parameter.decays
            else HostParameter(unit, parameter, states[parameter.name])
            for parameter in unit.parameters
        }

    def begin_step(self, step: int, lr: float) -> None:
        self._step, self._lr = step, lr

    def submit(self, unit: Unit) -> None:
        parameters = self._parameters[unit.name]
        unit.drop_weights()
        for name, piece in unit.pieces():
            for update in parameters[name].updates(piece):
                if self._clip_norm is None:
                    self._apply(update, 1.0)
                else:
                    self._hold(update)

    def finish_step(self) -> UpdateReport:
        began = time.perf_counter()
        norm, factor = None, 1.0
        if self._clip_norm is not None:
            self._workers.wait()
            norm = global_norm(self._square_sums)
            factor = clip_factor(norm, self._clip_norm)
            held, self._held, self._square_sums = self._held, [], []
            for update in held:
                self._apply(update, factor)
        self._workers.wait()
        for device in self._devices.values():
            device.end_step()
        return UpdateReport(time.perf_counter() - began, self._workers.take_busy_secs(), norm, factor)

    def state(self, unit: Unit) -> dict[str, AdamState]:
        return {name: parameter.to_host() for name, parameter in self._parameters[unit.name].items()}

    def close(self) -> None:
        on_its_way = sys.exception()
        self._workers.close()
        try:
            self._free()
        except Exception as error:
            if on_its_way is None:
                raise
            on_its_way.add_note(f"Closing the optimizer after it: {error!r}")

    def _free(self) -> None:
        for device in self._devices.values():
            device.end_step()
        for parameters in self._parameters.values():
            for parameter in parameters.values():
                parameter.free()

    def _device(self, backend: DeviceBackend) -> ResidentDevice:
        if id(backend) not in self._devices:
            self._devices[id(backend)] = ResidentDevice(backend, tile_elements=self._tile_elements, dtype=self._dtype)
        return self._devices[id(backend)]

    def _scalars(self, update: Update, factor: float) -> StepScalars:
        return StepScalars.at(self._step, self._lr, self._settings, decays=update.decays, grad_scale=factor)

    def _apply(self, update: Update, factor: float) -> None:
        scalars = self._scalars(update, factor)
        if isinstance(update, HostUpdate):
            self._workers.submit(partial(update.apply, scalars), f"update {update.of.unit.name}")
        else:
            update.apply(scalars)

    def _hold(self, update: Update) -> None:
        """Keep an update until the norm is known, and have its part of the norm taken. The sums come in any order."""
        self._held.append(update)
        self._workers.submit(lambda: self._square_sums.append(update.square_sum()), "norm")
