"""`python -m trainer plan`: what fits, what a step takes, and the command to run. Reads headers only; no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from graphcache.device.backend_name import parse
from graphcache.errors import UsageError
from graphcache.header.table import read_config
from graphcache.manifest.file import is_manifest, read_manifest
from graphcache.process.limits import available_memory_bytes
from trainer.architecture.config import ModelConfig
from trainer.config import RunConfig
from trainer.plan.candidates import Candidate, Limits, candidates, recommended
from trainer.plan.costs import CostsError, StepCosts, assumed, from_run
from trainer.plan.estimates import from_estimates, of_manifest
from trainer.report.runs import read_runs
from trainer.report.tables import Table, as_text
from trainer.step.choose import choose_step
from trainer.step.schedule import Step

CostsOf = Callable[[Step], StepCosts]
# What a measured cost of a pass holds for.
SHAPES = ("seq", "micro_batch", "dtype")
HEADER = ("devices", "resident", "device GB", "host GB", "fits", "step s", "tokens/s", "update wait s", "limited by")


def plan(config: RunConfig, source: Path | None, host_gib: float | None) -> list[Candidate]:
    """The candidates for 1 to as many devices as `--backend` names.

    source:   a run's folder, or a manifest with the compiler's estimates; None: a data sheet's figures
    host_gib: the memory of the host that will run; None: this one's

    Raises CostsError, and what reading the model's config raises.
    """
    model = ModelConfig.from_json(_config_of(config.model))
    workers = config.update_workers  # the machine that will run has the CPUs for them
    host = available_memory_bytes() if host_gib is None else int(host_gib * 1024**3)
    limits = Limits(config.pool_bytes, host)
    devices = range(1, len(parse(config.backend)[1]) + 1)
    return candidates(model, config, devices, _costs(model, source, config, workers), limits, workers=workers)


def _config_of(model: Path) -> dict[str, Any]:
    if is_manifest(model):
        config = read_manifest(model).config
        if config is not None:
            return dict(config)
    found = read_config(model)
    if found is None:
        raise UsageError(f"{model} has no config.json", hint="--model is a checkpoint's folder, or a manifest")
    return found


def _costs(model: ModelConfig, source: Path | None, config: RunConfig, workers: int) -> CostsOf:
    if source is None:
        return lambda step: assumed(step, workers)
    if source.is_dir():
        costs = _costs_of_run(model, source, config, workers)
        return lambda step: costs
    estimates = of_manifest(read_manifest(source))
    return lambda step: from_estimates(step, estimates, workers, source.name)


def _costs_of_run(model: ModelConfig, folder: Path, config: RunConfig, workers: int) -> StepCosts:
    """What a run's steps cost. Raises CostsError where its shapes are not the plan's."""
    run = read_runs([folder])[0]
    known = {field.name for field in fields(RunConfig)}
    before = RunConfig(**{name: value for name, value in run.settings.items() if name in known})
    differing = [name for name in SHAPES if getattr(before, name) != getattr(config, name)]
    if differing:
        said = ", ".join(f"--{name.replace('_', '-')} {getattr(before, name)}" for name in differing)
        raise CostsError(
            f"{folder} ran with {said}", hint="costs hold for the shapes that were measured: give the same"
        )
    step, _ = choose_step(
        model,
        before,
        len(parse(before.backend)[1]),
        micro_batches=before.accum,
        pool_bytes=before.pool_bytes,
        program_bytes=0,
        workers=workers,
    )
    return from_run(step, run.steps, workers)


def show(found: Sequence[Candidate], config: RunConfig, *, as_json: bool) -> int:
    """Print the candidates and the command to take; returns the exit code, 1 when nothing fits."""
    best = recommended(found)
    if as_json:
        print(json.dumps(_as_json(found, best, config), indent=2, sort_keys=True))
    else:
        print("\n".join(_lines(found, best, config)))
    return 0 if best else 1


def _as_json(found: Sequence[Candidate], best: Candidate | None, config: RunConfig) -> dict[str, Any]:
    command = None if best is None else command_of(best, config)
    return {"candidates": [each.as_json() for each in found], "recommended": command}


def command_of(candidate: Candidate, config: RunConfig) -> str:
    """The run that a candidate stands for."""
    kind, names = parse(config.backend)
    backend = ",".join(["furiosa:auto"] * candidate.devices) if kind == "furiosa" else f"{kind}:{candidate.devices}"
    backend = config.backend if candidate.devices == len(names) else backend
    words = [
        *("python", "-m", "trainer", "run", "--model", str(config.model), "--data", "FILE", "--out", "RUN"),
        *("--backend", backend, "--resident-layers", str(candidate.resident_layers)),
        *("--seq", str(config.seq), "--micro-batch", str(config.micro_batch), "--accum", str(config.accum)),
        *("--dtype", config.dtype, "--update-workers", str(config.update_workers)),
        *(() if config.clip_norm is None else ("--clip-norm", str(config.clip_norm))),
    ]
    return shlex.join(words)


def _lines(found: Sequence[Candidate], best: Candidate | None, config: RunConfig) -> Iterator[str]:
    table = Table("", HEADER, tuple(_row(each) for each in found), words=0)
    yield from as_text(table)[1:]
    yield ""
    yield f"costs        {found[0].costs.basis}"
    if best is None:
        yield "nothing fits: a smaller --micro-batch or --seq, or more devices"
        return
    where = ", ".join(f"{kind} {secs:.2f} s" for kind, secs in sorted(best.device_secs().items()))
    yield f"time goes    {where}, update wait {best.timeline.update_wait_secs:.2f} s (devices added up)"
    yield f"take         {command_of(best, config)}"
    yield f"because      {_reason(best, found)}"


def _row(each: Candidate) -> tuple[str, ...]:
    return (
        str(each.devices),
        str(each.resident_layers),
        f"{each.fullest_device_bytes / 1e9:.1f}",
        f"{each.memory.host_bytes / 1e9:.1f}",
        "; ".join(fault.short for fault in each.faults) or "yes",
        f"{each.timeline.step_secs:.2f}",
        f"{each.tokens_per_sec:,.0f}",
        f"{each.timeline.update_wait_secs:.2f}",
        each.limit,
    )


def _reason(best: Candidate, found: Sequence[Candidate]) -> str:
    offload = next(each for each in found if each.devices == best.devices)
    gain = offload.timeline.step_secs / best.timeline.step_secs
    return (
        f"the quickest that fits, {gain:.2f} times as fast as no resident layers on as many devices;"
        " more resident layers are not a hundredth faster, or do not fit"
    )
