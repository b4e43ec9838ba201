"""`python -m trainer plan`: what fits, what a step takes, and the command to run. Reads headers only; no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graphcache.device.backend_name import parse
from graphcache.process.limits import available_memory_bytes
from trainer.architecture.config import ModelConfig
from trainer.config import RunConfig
from trainer.plan.candidates import Candidate, Limits, candidates, recommended
from trainer.plan.sources import config_of, costs_of
from trainer.report.tables import Table, as_text

HEADER = ("devices", "resident", "device GB", "host GB", "fits", "step s", "tokens/s", "update wait s", "limited by")


def plan(config: RunConfig, sources: Sequence[Path], host_gib: float | None) -> list[Candidate]:
    """The candidates for 1 to as many devices as `--backend` names.

    sources:  runs' folders, manifests and calibrations that tell costs; none: a data sheet's figures
    host_gib: the memory of the host that will run; None: this one's

    Raises CostsError, and what reading the model's config raises.
    """
    model = ModelConfig.from_json(config_of(config.model))
    workers = config.update_workers  # the machine that will run has the CPUs for them
    host = available_memory_bytes() if host_gib is None else int(host_gib * 1024**3)
    limits = Limits(config.pool_bytes, host)
    devices = range(1, len(parse(config.backend)[1]) + 1)
    return candidates(model, config, devices, costs_of(model, sources, config), limits, workers=workers)


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
