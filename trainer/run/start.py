"""A run from its settings: its folder is held, and its tokens are made, before torch is there."""

from __future__ import annotations

from typing import Any

from trainer.config import RunConfig
from trainer.data.ahead import tokens_ahead
from trainer.record.folder import RunFolder
from trainer.run.stop import StopRequest


def run(config: RunConfig) -> dict[str, Any]:
    """Train; returns the summary.

    Raises whatever preflight finds missing, NonFiniteLossError, CheckpointError, and Stopped.
    """
    folder = RunFolder(config.out)
    with StopRequest().installed() as stop, folder.held(resume=config.resume):
        tokens = tokens_ahead(config, "trainer.run.run")
        from trainer.run.run import run_held

        return run_held(config, tokens, folder, stop)
