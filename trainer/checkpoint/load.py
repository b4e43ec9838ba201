"""Loading the optimizer's state of one unit from a complete checkpoint, every byte checked."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.checkpoint.folder import SavedCheckpoint
from trainer.checkpoint.save import STATE_PARTS, state_path, state_specs
from trainer.checkpoint.tensors import CheckpointError, read_tensors
from trainer.config import ConfigError
from trainer.optim.base import AdamState, Unit


def read_state(saved: SavedCheckpoint, unit: Unit) -> dict[str, AdamState]:
    """The unit's state by parameter, flat float32. Raises CheckpointError."""
    path = state_path(unit)
    if path not in saved.files:
        raise CheckpointError(f"{saved.folder} has no {path}", hint="it is of a model with other units: check --model")
    tensors = read_tensors(saved.folder / path, saved.files[path], state_specs(unit))

    def state(name: str) -> AdamState:
        return AdamState(*(tensors[f"{unit.prefix}{name}.{part}"].view(-1) for part in STATE_PARTS))

    return {p.name: state(p.name) for p in unit.parameters}


def check_data(saved: SavedCheckpoint, now: Mapping[str, object]) -> None:
    """Checks that the run continues with the data that it began with. Raises ConfigError."""
    if saved.data.get("digest") != now["digest"]:
        raise ConfigError(
            f"the data has digest {now['digest']}, and step {saved.step} was trained on {saved.data.get('digest')}",
            hint="--data, tokenizer.json and the chat template must be those that the run began with",
        )
