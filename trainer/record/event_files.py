"""TensorBoard's event files: a scalar for every number of a step's record, under the record's own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from trainer.record.scalars import scalars


class EventFiles:
    """One event file a session in `folder`."""

    def __init__(self, folder: Path, done: int) -> None:
        # Steps that a killed session did after its checkpoint are done again, and shown once.
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def step(self, record: Mapping[str, Any]) -> None:
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
