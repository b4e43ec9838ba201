"""One training step on the cpu backend against transformers with gradient checkpointing and torch's fused AdamW."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.measure import Result, cpu_name, python
from tests.bench.trainer_run import SEQ, THREADS, run_steps
from tests.support.real_checkpoint import real_checkpoint
from trainer.device.products import bfloat16_is_slow

STEPS = 6
ROUNDS = 3


def measure() -> list[Result]:
    """SmolLM2-135M, one sequence of 512 tokens a step; a process each, one after the other, ROUNDS times."""
    model = real_checkpoint()
    with tempfile.TemporaryDirectory() as work:
        runs = [(run_steps(model, Path(work), STEPS), _reference(model)) for _ in range(ROUNDS)]
    secs = median(ours.step_secs for ours, _ in runs), median(theirs["step_secs"] for _, theirs in runs)
    peak = median(ours.peak_bytes for ours, _ in runs), median(theirs["peak_bytes"] for _, theirs in runs)
    dtype = "float32" if bfloat16_is_slow() else "bfloat16"
    return [
        Result(
            f"training step, cpu / transformers in {dtype}",
            secs[0] / secs[1],
            1.0,
            True,
            f"{secs[0]:.2f} / {secs[1]:.2f} s; {cpu_name()}",
        ),
        Result(
            "its peak memory / transformers",
            peak[0] / peak[1],
            0.8,
            True,
            f"{peak[0] / 1e9:.2f} / {peak[1] / 1e9:.2f} GB",
        ),
    ]


def _reference(model: Path) -> dict[str, Any]:
    argv = python("-m", "tests.bench.reference_step", str(model), str(STEPS), str(SEQ), str(THREADS))
    run = subprocess.run(argv, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found
