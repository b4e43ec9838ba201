"""Forward and backward of Llama-3.1-8B on several emulated cards against one: no arithmetic, emulated device time."""

from __future__ import annotations

from pathlib import Path

from tests.bench.emulated_step import pipeline_secs
from tests.bench.measure import Result

MANIFEST = Path("cache_manifests/llama-3.1-8b.json")
ACCUM = 8
# Devices, and the most of one device's time that they may take.
AIMS = ((2, 0.62), (4, 0.40))


def measure() -> list[Result]:
    """Eight micro-batches of 512 tokens a step."""
    one, _ = pipeline_secs(MANIFEST, 1, ACCUM)
    results = []
    for devices, aim in AIMS:
        secs, group = pipeline_secs(MANIFEST, devices, ACCUM)
        detail = f"{secs:.2f} s / {one:.2f} s, emulated; groups of {group}"
        results.append(Result(f"forward and backward, {devices} devices / one", secs / one, aim, True, detail))
    return results
