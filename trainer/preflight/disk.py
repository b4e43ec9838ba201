"""Room on the disk for the checkpoints of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from graphcache.errors import GraphcacheError
from graphcache.graph import ITEM_BYTES
from trainer.checkpoint.folder import complete_steps
from trainer.checkpoint.save import SLACK_BYTES
from trainer.config import RunConfig
from trainer.record.folder import RunFolder
from trainer.step.memory import STATE_BYTES


class DiskSpaceError(GraphcacheError):
    """There is no room for the checkpoints."""

    name = "disk-space"


def check_disk(config: RunConfig, parameters: int, done: int, steps: int | None) -> None:
    """Checks that there is room for all checkpoints that the run will hold at a time, beside those that it has.

    steps: of the whole run, `done` of them before; None when that is not known, which counts as many
    Raises DiskSpaceError.
    """
    each = parameters * (STATE_BYTES + ITEM_BYTES[config.dtype]) + SLACK_BYTES
    checkpoints = RunFolder(config.out).checkpoints.absolute()  # it may lead to another disk
    count = _new_checkpoints(config, _existing(checkpoints), done, steps)
    place = next(p for p in (checkpoints, *checkpoints.parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < count * each:
        kept = f", and {count} more will be there at a time: {count * each:,} bytes" if count > 1 else ""
        raise DiskSpaceError(
            f"a checkpoint takes {each:,} bytes{kept}; {place} has {free:,} free",
            hint="choose another --out" + (", or a smaller --keep" if count > 1 else ""),
        )


def _existing(checkpoints: Path) -> int:
    """None where they cannot be listed: that RUN cannot be used is an error of its own."""
    try:
        return len(complete_steps(checkpoints))
    except OSError:
        return 0


def _new_checkpoints(config: RunConfig, existing: int, done: int, steps: int | None) -> int:
    """The most that are added to those that exist: an old one is deleted only when a newer one is complete."""
    most = max(1, config.keep + config.best + 1 - existing)
    if steps is None:
        return most
    every = [config.save_every, config.eval_every if config.best else None]
    saves = sum(steps // number - done // number for number in every if number is not None) + 1  # one at the end
    return min(most, saves)
