"""Which checkpoints a run has: names, the completion marker, the newest complete one, the oldest to go.

    RUN/checkpoints/step-00000010/
        config.json, model.safetensors, tokenizer files     what transformers loads
        optimizer/<unit>.safetensors                        float32 master weights and moments
        complete.json                                       the marker: step, settings, every file's size and checksum

A folder without its marker is not a checkpoint: a save or a deletion was cut short. The marker is written last, and the
folder has another name until it is there.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.errors import CorruptError
from graphcache.store.files import TEMPORARY, sync_folder
from graphcache.store.records import seal, unseal
from trainer.checkpoint.tensors import CheckpointError, FileFacts

FORMAT = "checkpoint-1"
MARKER = "complete.json"
OPTIMIZER = "optimizer"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A complete checkpoint.

    step:   optimizer steps that are in it
    config: the run's settings; data: what DataFacts says of its data
    files:  all files but the marker, by their path in the folder
    """

    folder: Path
    step: int
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    files: Mapping[str, FileFacts]


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def marker(step: int, config: Mapping[str, Any], data: Mapping[str, Any], files: Mapping[str, FileFacts]) -> bytes:
    """The completion marker's bytes, which cover themselves."""
    listed = {path: facts.as_json() for path, facts in sorted(files.items())}
    return seal(FORMAT, {"step": step, "config": dict(config), "data": dict(data), "files": listed})


def newest(checkpoints: Path) -> SavedCheckpoint | None:
    """The newest complete checkpoint of a run, or None.

    Raises CheckpointError when it has its marker and is not what the marker says: whether to go back further is the
    user's to decide.
    """
    found = complete_steps(checkpoints)
    return read(checkpoints / folder_name(found[-1])) if found else None


def complete_steps(checkpoints: Path) -> list[int]:
    """Steps of the folders that have their marker, in order."""
    return sorted(step for step, folder in _folders(checkpoints) if (folder / MARKER).exists())


def read(folder: Path) -> SavedCheckpoint:
    """What the marker says, checked against the files' sizes. Bytes of the optimizer's files are checked when they are
    read; the model's file, which has no more than they have, is not read again. Raises CheckpointError."""
    hint = f"delete {folder} to resume from the checkpoint before"
    try:
        body = unseal(FORMAT, (folder / MARKER).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{folder / MARKER} cannot be read: {error.strerror}") from error
    except CorruptError as error:
        raise CheckpointError(f"{folder / MARKER}: {error.message}", hint=hint) from error
    files = {path: FileFacts(**facts) for path, facts in body["files"].items()}
    for path, facts in files.items():
        if not (folder / path).is_file():
            raise CheckpointError(f"{folder / path} is missing", hint=hint)
        size = (folder / path).stat().st_size
        if size != facts.size_bytes:
            raise CheckpointError(f"{folder / path} has {size} bytes, not {facts.size_bytes}", hint=hint)
    return SavedCheckpoint(folder=folder, step=body["step"], config=body["config"], data=body["data"], files=files)


def sweep(checkpoints: Path) -> list[str]:
    """Delete what saves and deletions that were cut short have left; returns what could not be deleted, and why."""
    if not checkpoints.is_dir():
        return []
    cut = [path for path in checkpoints.iterdir() if path.name.startswith(TEMPORARY)]
    cut += [folder for _, folder in _folders(checkpoints) if not (folder / MARKER).exists()]
    return [kept for path in cut for kept in _delete(path)]


def delete_all_but(checkpoints: Path, keep: int, best: int | None = None) -> list[str]:
    """Delete all complete checkpoints but the newest `keep` and that of step `best`; returns what could not be deleted,
    and why."""
    old = [checkpoints / folder_name(step) for step in complete_steps(checkpoints)[:-keep] if step != best]
    return [kept for folder in old for kept in _delete(folder)]


def _delete(path: Path) -> list[str]:
    """A folder's marker goes first, so that half of a checkpoint is none."""
    try:
        if not path.is_dir():
            path.unlink()
            return []
        if (path / MARKER).exists():
            (path / MARKER).unlink()
            sync_folder(path)
        shutil.rmtree(path)
    except OSError as error:
        return [f"{path} could not be deleted: {error.strerror or error}"]
    return []


def _folders(checkpoints: Path) -> list[tuple[int, Path]]:
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(FileNotFoundError):
        for path in checkpoints.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                found.append((int(match[1]), path))
    return found
