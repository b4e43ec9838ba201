"""The memory that accumulation takes on the host: four micro-batches a step against one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.measure import Result
from tests.bench.trainer_run import SEQ, run_steps
from tests.support.real_checkpoint import real_checkpoint
from trainer.checkpoint.pretrained import InputCheckpoint

STEPS = 3
ACCUM = 4
ITEM_BYTES = 2


def measure() -> list[Result]:
    """SmolLM2-135M, bfloat16: peak memory of the process, against one micro-batch and the further ones' inputs."""
    model = real_checkpoint()
    config = InputCheckpoint(model).config
    inputs = (ACCUM - 1) * (config.layers + 1) * SEQ * config.hidden * ITEM_BYTES
    with tempfile.TemporaryDirectory() as work:
        one, several = (run_steps(model, Path(work), STEPS, ("--accum", str(n))).peak_bytes for n in (1, ACCUM))
    detail = f"{several / 1e9:.3f} / ({one / 1e9:.3f} + {inputs / 1e9:.3f}) GB"
    return [Result(f"peak memory, accum {ACCUM} / accum 1 and inputs", several / (one + inputs), 1.0, True, detail)]
