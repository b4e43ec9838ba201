"""Saving a checkpoint: one unit at a time into a folder without a name, the marker, then the name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphcache.digest import checksum
from graphcache.graph import TensorSpec
from graphcache.store.files import TEMPORARY, make_folder, sync_folder
from trainer.checkpoint.finite import check_finite
from trainer.checkpoint.folder import MARKER, OPTIMIZER, complete_steps, folder_name, marker
from trainer.checkpoint.tensors import CheckpointError, FileFacts, TensorWriter
from trainer.optim.base import AdamState, Unit

# The fields of AdamState, in its order.
STATE_PARTS = ("master", "exp_avg", "exp_avg_sq")
# As the hub splits checkpoints; a unit is never split.
SHARD_LIMIT_BYTES = 5_000_000_000
# Beside the tensors: tokenizer, settings, headers.
SLACK_BYTES = 64 << 20
# What belongs to a model besides its weights and config.json, where it is there.
BESIDE = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint is made of.

    config_json: the model's config.json
    beside:      its tokenizer's files and the like by their names, of `files_beside`
    dtype:       of the weights, the run's compute dtype
    state:       gives a unit's state; called once for each unit, in order
    config:      the run's settings; data: what DataFacts says
    """

    config_json: Mapping[str, Any]
    beside: Mapping[str, bytes]
    dtype: str
    units: Sequence[Unit]
    state: Callable[[Unit], Mapping[str, AdamState]]
    config: Mapping[str, Any]
    data: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        """What the tensors take on disk."""
        return sum(s.size_bytes for unit in self.units for s in [*weight_specs(unit, self.dtype), *state_specs(unit)])


def weight_specs(unit: Unit, dtype: str) -> list[TensorSpec]:
    """The unit's weights as the model's file holds them."""
    return [TensorSpec(unit.prefix + p.name, dtype, p.shape) for p in unit.parameters]


def state_specs(unit: Unit) -> list[TensorSpec]:
    """The unit's optimizer state as its file holds it."""
    names = [(f"{unit.prefix}{p.name}.{part}", p.shape) for p in unit.parameters for part in STATE_PARTS]
    return [TensorSpec(name, "float32", shape) for name, shape in names]


def files_beside(model: Path) -> dict[str, bytes]:
    """What a checkpoint needs of the model's folder, read before training: the folder may be gone when one is saved."""
    found = {}
    for name in BESIDE:
        with contextlib.suppress(FileNotFoundError):
            found[name] = (model / name).read_bytes()
    return found


def save(checkpoints: Path, step: int, contents: Contents) -> Path:
    """Write the checkpoint of `step`; returns its folder.

    Raises CheckpointError when it cannot be written, NonFiniteStateError when a number in it is not finite. Nothing of
    it is left then, and older ones are as they were.
    """
    folder = checkpoints / folder_name(step)
    temporary = checkpoints / f"{TEMPORARY}{os.urandom(8).hex()}"
    try:
        make_folder(checkpoints)
        if step in complete_steps(checkpoints):
            return folder
        _check_space(checkpoints, contents)
        try:
            _write(temporary, step, contents)
            temporary.rename(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(temporary)
            raise
        sync_folder(checkpoints)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {checkpoints}: {reason}",
            hint="free some space there; --resume goes on from the newest complete checkpoint",
        ) from error
    return folder


def _check_space(checkpoints: Path, contents: Contents) -> None:
    free, needed = shutil.disk_usage(checkpoints).free, contents.size_bytes + SLACK_BYTES
    if free < needed:
        raise CheckpointError(
            f"a checkpoint takes {needed:,} bytes and {checkpoints} has {free:,} left",
            hint="free some space there; --resume goes on from the newest complete checkpoint",
        )


def _write(temporary: Path, step: int, contents: Contents) -> None:
    (temporary / OPTIMIZER).mkdir(parents=True)
    files = _write_tensors(temporary, contents)
    files |= _write_settings(temporary, contents)
    sync_folder(temporary / OPTIMIZER)
    _write_bytes(temporary / MARKER, marker(step, contents.config, contents.data, files))
    sync_folder(temporary)


def _write_tensors(temporary: Path, contents: Contents) -> dict[str, FileFacts]:
    """Weights and state, a unit at a time: nothing is copied but one parameter's weight."""
    files: dict[str, FileFacts] = {}
    dtype = getattr(torch, contents.dtype)
    shards = _shards(contents)
    weight_map: dict[str, str] = {}
    for number, units in enumerate(shards, 1):
        layout = [spec for unit in units for spec in weight_specs(unit, contents.dtype)]
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= {spec.name: name for spec in layout}
        with TensorWriter(temporary / name, layout) as weights:
            for unit in units:
                path = state_path(unit)
                with TensorWriter(temporary / path, state_specs(unit)) as optimizer:
                    states = contents.state(unit)
                    for parameter in unit.parameters:
                        state = states[parameter.name]
                        check_finite(unit.prefix + parameter.name, state)
                        weights.write(state.master.to(dtype))
                        for tensor in (state.master, state.exp_avg, state.exp_avg_sq):
                            optimizer.write(tensor)
                files[path] = optimizer.facts
        files[name] = weights.facts
    if len(shards) > 1:
        total = sum(spec.size_bytes for unit in contents.units for spec in weight_specs(unit, contents.dtype))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        files |= _write_json(temporary / "model.safetensors.index.json", index)
    return files


def state_path(unit: Unit) -> str:
    return f"{OPTIMIZER}/{unit.name}.safetensors"


def _shards(contents: Contents) -> list[list[Unit]]:
    shards: list[list[Unit]] = [[]]
    used = 0
    for unit in contents.units:
        size = sum(spec.size_bytes for spec in weight_specs(unit, contents.dtype))
        if shards[-1] and used + size > SHARD_LIMIT_BYTES:
            shards.append([])
            used = 0
        shards[-1].append(unit)
        used += size
    return shards


def _write_settings(temporary: Path, contents: Contents) -> dict[str, FileFacts]:
    # transformers 5 reads `dtype`, older versions `torch_dtype`.
    dtypes = {"dtype": contents.dtype, "torch_dtype": contents.dtype}
    files = _write_json(temporary / "config.json", {**contents.config_json, **dtypes})
    for name, data in contents.beside.items():
        files |= _write_bytes(temporary / name, data)
    return files


def _write_json(path: Path, value: Any) -> dict[str, FileFacts]:
    return _write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def _write_bytes(path: Path, data: bytes) -> dict[str, FileFacts]:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {path.name: FileFacts(len(data), checksum(data))}
