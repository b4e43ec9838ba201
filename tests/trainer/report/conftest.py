from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a RUN folder as a run leaves it: `secs` and `losses` by step, settings, environment."""

    def make(
        name: str,
        secs: list[float],
        losses: list[float] | None = None,
        environment: Any = None,
        trace: str = "",
        **settings: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        losses = losses or [2.0 - 0.01 * i for i in range(len(secs))]
        lines = [step(i, a, b) for i, (a, b) in enumerate(zip(secs, losses, strict=True), 1)]
        (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.json").write_text(json.dumps({"out": name, "seq": 32, **settings}))
        (folder / "environment.json").write_text(json.dumps(environment or {"versions": {"torch": "2.10.0"}}))
        if trace:
            (folder / "trace.json").write_text(trace)
        return folder

    return make


def step(number: int, secs: float, loss: float) -> dict[str, Any]:
    """A line of steps.jsonl; every third step has twice the label tokens."""
    return {
        "step": number,
        "loss": loss,
        "tokens": 100,
        "label_tokens": 80 if number % 3 == 0 else 40,
        "step_secs": secs,
        "update_wait_secs": 0.25,
        "phase_secs": {"forward": secs / 2, "backward": secs / 4},
        "device_peak_bytes": {"cpu:0": 123_000_000},
    }
