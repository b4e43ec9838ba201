"""A few real steps of the trainer in a process of its own, for the benchmarks of training."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import python, run_command

SEQ = 512
THREADS = 2


@dataclass(frozen=True)
class Steps:
    """Medians over the steps after the first, seconds; the process's peak memory."""

    step_secs: float
    update_wait_secs: float
    peak_bytes: int


def run_steps(model: Path, work: Path, steps: int, extra: Sequence[str] = ()) -> Steps:
    """`python -m trainer run`, one sequence of SEQ tokens a step, on the cpu backend, offload."""
    data, out = work / "data.txt", work / f"run{len(list(work.iterdir()))}"
    data.write_text("\n\n".join(f"The {i}th line of a text that is long enough for every step." for i in range(1500)))
    argv = python("-m", "trainer", "run", "--model", str(model), "--data", str(data), "--out", str(out))
    argv += ["--steps", str(steps), "--seq", str(SEQ), "--accum", "1", *extra]
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": str(THREADS)}
    run = run_command(argv, env)
    records = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()][1:]
    return Steps(
        statistics.median(record["step_secs"] for record in records),
        statistics.median(record["update_wait_secs"] for record in records),
        run.peak_rss_bytes,
    )
