"""Where a plan's costs come from: a run, a manifest with the compiler's estimates, a calibration, or a data sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from graphcache.device.backend_name import parse
from graphcache.errors import UsageError
from graphcache.header.table import read_config
from graphcache.manifest.file import is_manifest, read_manifest
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import parameter_shapes
from trainer.config import RunConfig
from trainer.plan.calibration import Calibration, is_calibration
from trainer.plan.calibration import read as read_calibration
from trainer.plan.contention import alone
from trainer.plan.costs import CostsError, StepCosts, assumed
from trainer.plan.estimates import from_estimates, of_manifest
from trainer.plan.run_costs import from_run
from trainer.report.runs import RecordedRun, read_runs
from trainer.step.choose import choose_step
from trainer.step.schedule import Step

CostsOf = Callable[[Step], StepCosts]


def config_of(model: Path) -> dict[str, Any]:
    """A checkpoint's config.json, or a manifest's. Raises UsageError without one."""
    if is_manifest(model):
        config = read_manifest(model).config
        if config is not None:
            return dict(config)
    found = read_config(model)
    if found is None:
        raise UsageError(f"{model} has no config.json", hint="--model is a checkpoint's folder, or a manifest")
    return found


def costs_of(model: ModelConfig, sources: Sequence[Path], config: RunConfig) -> CostsOf:
    """Costs of the device from a run or a manifest, of the host from a calibration, which may have both.

    Raises CostsError for sources that say the same thing twice, and for a run of other shapes.
    """
    calibrations = [read_calibration(path) for path in sources if path.is_file() and is_calibration(path)]
    others = [path for path in sources if path.is_dir() or not is_calibration(path)]
    devices = len(others) + sum(each.device is not None for each in calibrations)
    if len(calibrations) > 1 or devices > 1:
        raise CostsError(
            f"--from {' --from '.join(map(str, sources))}: more than one tells the costs of the same thing",
            hint="give a RUN or a manifest for the device, and beside it a calibration without a run for the host",
        )
    calibration = calibrations[0] if calibrations else None
    of_device = _of_device(model, others[0] if others else None, calibration, config)
    if calibration is None:
        return of_device
    return lambda step: calibration.of_host(of_device(step), config.update_workers)


def _of_device(model: ModelConfig, source: Path | None, calibration: Calibration | None, config: RunConfig) -> CostsOf:
    workers = config.update_workers  # the machine that will run has the CPUs for them
    if source is None and calibration is not None and calibration.device is not None:
        check_shapes(calibration.shapes, shapes_of(model, config), "the calibration's run")
        device = calibration.device
        return lambda step: device
    if source is None:
        return lambda step: assumed(step, workers)
    if source.is_dir():
        (run,) = read_runs([source])
        before = settings_of(run)
        step_of_run, costs = costs_of_run(run, model)
        check_shapes(shapes_of(model, before), shapes_of(model, config), str(source))
        if calibration is not None and costs.workers in calibration.update_secs:
            costs = alone(step_of_run, costs, calibration.busy_call_secs(costs.workers))
        return lambda step: costs
    estimates = of_manifest(read_manifest(source))
    return lambda step: from_estimates(step, estimates, workers, source.name)


def settings_of(run: RecordedRun) -> RunConfig:
    """The settings that a run had."""
    known = {field.name for field in fields(RunConfig)}
    settings = {name: value for name, value in run.settings.items() if name in known}
    return RunConfig(**{**settings, **{name: Path(settings[name]) for name in ("model", "data", "out")}})


def costs_of_run(run: RecordedRun, model: ModelConfig) -> tuple[Step, StepCosts]:
    """The step that a run did of this model, and what it cost. Raises CostsError."""
    before = settings_of(run)
    machine = run.environment.get("machine", {})
    workers = int(machine.get("update_workers", before.update_workers))
    step, _ = choose_step(
        model,
        before,
        len(parse(before.backend)[1]),
        micro_batches=before.accum,
        pool_bytes=before.pool_bytes,
        program_bytes=0,
        workers=workers,
    )
    return step, from_run(step, run.steps, workers, run.prediction.get("call_secs"))


def shapes_of(model: ModelConfig, config: RunConfig) -> dict[str, Any]:
    """What a measured cost of a pass holds for, by the names of settings; `layer`: of one layer's parameters."""
    layer = {name: list(shape) for name, shape in parameter_shapes(model).items()}
    shapes = {name: getattr(config, name) for name in ("seq", "micro_batch", "dtype")}
    return {**shapes, "vocab": model.vocab, "layer": layer}


def check_shapes(before: Mapping[str, Any], now: Mapping[str, Any], whose: str) -> None:
    """Raises CostsError naming the shapes that differ."""
    differing = [name for name in now if before.get(name) != now[name]]
    if differing:
        said = [
            f"--{name.replace('_', '-')} {before.get(name)}"
            if name in ("seq", "micro_batch", "dtype")
            else "another model"
            for name in differing
        ]
        raise CostsError(
            f"{whose} had {', '.join(dict.fromkeys(said))}",
            hint="costs hold for the shapes that were measured: give the same",
        )
