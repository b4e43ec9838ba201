"""What a run says of itself: a record and a line of progress for each step, a summary at the end."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from graphcache.device.base import DeviceBackend
from trainer.checkpoint.folder import SavedCheckpoint
from trainer.config import RunConfig
from trainer.step.loop import StepResult

# How many of the last steps the time left is judged by.
RECENT_STEPS = 20
# What writing raises when the disk is full, the reader has gone, the terminal has hung up, the stream is closed.
LOST = (OSError, ValueError)


def step_record(step: int, lr: float, result: StepResult, devices: Sequence[DeviceBackend]) -> dict[str, Any]:
    """A line of steps.jsonl. `tokens` are those that went through the model, `label_tokens` those that counted."""
    secs = result.clock.total_secs
    return {
        "step": step,
        "loss": result.loss,
        "tokens": result.tokens,
        "label_tokens": result.label_tokens,
        "lr": lr,
        "step_secs": round(secs, 6),
        "tokens_per_sec": round(result.tokens / secs, 3),
        "update_wait_secs": round(result.update.wait_secs, 6),
        "update_busy_secs": round(result.update.busy_secs, 6),
        "grad_norm": result.update.grad_norm,
        "clip_factor": result.update.clip_factor,
        "phase_secs": {name: round(value, 6) for name, value in sorted(result.clock.secs.items())},
        "device_bytes": {device.name: device.bytes_in_use for device in devices},
        "device_peak_bytes": {device.name: device.peak_bytes for device in devices},
    }


def steps_line(steps: int, saved: SavedCheckpoint | None) -> str:
    """How many steps a run has in all, and where it goes on."""
    done = ", from the beginning" if saved is None else f"; {saved.step:,} are done, in {saved.folder}"
    return f"steps    {steps:,}{done}"


class Progress:
    """One line a step on stderr: rewritten in place on a terminal, else a line each.

    It is a convenience: what cannot be written is lost, and the run goes on. Without a stderr there is none.
    """

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps = steps
        self._stream = stream or sys.stderr
        self._recent: list[float] = []
        self._live: Any = None
        if self._stream is not None and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), auto_refresh=False)

    def __enter__(self) -> Progress:
        if self._live:
            with suppress(*LOST):
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            with suppress(*LOST):
                self._live.stop()

    def step(self, record: Mapping[str, Any]) -> None:
        self._recent = [*self._recent, record["step_secs"]][-RECENT_STEPS:]
        left_secs = statistics.median(self._recent) * (self._steps - record["step"])
        line = "  ".join(
            (
                f"step {record['step']}/{self._steps}",
                f"loss {record['loss']:.4f}",
                f"{record['tokens_per_sec']:,.0f} tokens/s",
                f"{record['step_secs']:.2f} s/step",
                f"update wait {record['update_wait_secs']:.2f} s",
                *([f"eval loss {record['eval_loss']:.4f}"] if "eval_loss" in record else []),
                f"left {_duration(left_secs)}",
                *(["times are emulated"] if "emulated_times" in record else []),
            )
        )
        if self._live:
            from rich.text import Text

            with suppress(*LOST):
                self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._print(line)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._live:
            with suppress(*LOST):
                self._live.console.print(line, highlight=False, markup=False)
        else:
            self._print(line)

    def _print(self, line: str) -> None:
        if self._stream is not None:  # print would take it for stdout
            with suppress(*LOST):
                print(line, file=self._stream, flush=True)


def _duration(secs: float) -> str:
    if secs < 90:
        return f"{secs:.0f} s"
    minutes = round(secs / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def summary(config: RunConfig, records: Sequence[Mapping[str, Any]], checkpoint: Path | None) -> dict[str, Any]:
    """What a run says at its end."""
    secs = [r["step_secs"] for r in records]
    evaluated = [(r["eval_loss"], r["step"]) for r in records if "eval_loss" in r]
    lowest = {"lowest_eval_loss": min(evaluated)[0], "lowest_eval_step": min(evaluated)[1]} if evaluated else {}
    return {
        "out": str(config.out),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "steps": records[-1]["step"] if records else 0,
        "first_loss": records[0]["loss"] if records else None,
        "last_loss": records[-1]["loss"] if records else None,
        **({"last_eval_loss": evaluated[-1][0], **lowest} if evaluated else {}),
        "median_step_secs": statistics.median(secs) if secs else None,
        "slowest_step_secs": max(secs, default=None),
        "tokens": sum(r["tokens"] for r in records),
        **({"times": "emulated"} if any("emulated_times" in r for r in records) else {}),
    }
