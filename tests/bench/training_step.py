"""One training step on the cpu backend against transformers with gradient checkpointing and torch's fused AdamW."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.bench.measure import Result, python
from tests.bench.trainer_run import SEQ, THREADS, run_steps
from tests.support.real_checkpoint import real_checkpoint

STEPS = 6


def measure() -> list[Result]:
    """SmolLM2-135M, one sequence of 512 tokens a step; a process each, one after the other."""
    model = real_checkpoint()
    with tempfile.TemporaryDirectory() as work:
        ours = run_steps(model, Path(work), STEPS)
    argv = python("-m", "tests.bench.reference_step", str(model), str(STEPS), str(SEQ), str(THREADS))
    run = subprocess.run(argv, check=True, capture_output=True, text=True)
    theirs = json.loads(run.stdout.splitlines()[-1])
    secs, peak = ours.step_secs / theirs["step_secs"], ours.peak_bytes / theirs["peak_bytes"]
    return [
        Result("training step, cpu / transformers", secs, 1.0, True, f"{ours.step_secs:.2f} s"),
        Result("its peak memory / transformers", peak, 0.8, True, f"{ours.peak_bytes / 1e9:.2f} GB"),
    ]
