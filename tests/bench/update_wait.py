"""How long the trainer waits for the host's updates, against the same updates when nothing overlaps them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.bench.emulated_step import update_wait_secs
from tests.bench.measure import Result
from tests.bench.trainer_run import run_steps
from tests.support.real_checkpoint import real_checkpoint

STEPS = 6
MANIFEST = Path("cache_manifests/smollm2-135m.json")
ACCUM = 4


def measure() -> list[Result]:
    """The second run clips at a norm that is never reached: its updates all start after backward, so it waits for
    their whole time."""
    model = real_checkpoint()
    with tempfile.TemporaryDirectory() as work:
        exposed = run_steps(model, Path(work), STEPS).update_wait_secs
        alone = run_steps(model, Path(work), STEPS, ("--clip-norm", "1e9")).update_wait_secs
    detail = f"{exposed * 1e3:.1f} ms against {alone * 1e3:.1f} ms a step, SmolLM2-135M"
    return [
        Result("exposed update wait, offload / the update alone", exposed / alone, 0.25, True, detail),
        measure_emulated(),
    ]


def measure_emulated() -> Result:
    """On an emulated card, four micro-batches, where all updates take as long as backward."""
    wait, last = update_wait_secs(MANIFEST, ACCUM)
    detail = f"{wait * 1e3:.1f} ms against {last * 1e3:.1f} ms, SmolLM2-135M, device time emulated"
    return Result("update wait, accum 4 / the last group's update", wait / last, 1.0, True, detail)
