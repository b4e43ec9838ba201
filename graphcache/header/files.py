"""Which files a MODEL argument stands for, and its config.json.

MODEL is a .safetensors file, an .index.json, a checkpoint folder or a hub snapshot folder (whose files are links into
`blobs/`, so nothing is told by the name of a link's target).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphcache.header.errors import (
    ConfigFormatError,
    HeaderError,
    IndexFormatError,
    LfsPointerError,
    NoCheckpointError,
    ShardMissingError,
    ShardNameError,
    quoted,
)
from graphcache.header.json_bounds import Faults, parse
from graphcache.header.shard import LFS_MAGIC, open_error, open_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# 40 times the index of a model of 100,000 tensors; a config is a few KB.
INDEX_LIMIT_BYTES = 256 * 1024 * 1024
CONFIG_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The files of one model.

    folder:     where they lie
    index:      the index, or None for a checkpoint of one file
    shards:     file names in `folder`, sorted
    weight_map: what the index says: tensor name to shard; empty without an index
    unnamed:    .safetensors files in the folder that the checkpoint does not consist of, sorted
    """

    folder: Path
    index: Path | None
    shards: tuple[str, ...]
    weight_map: dict[str, str] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()


def find_checkpoint(model: Path) -> Checkpoint:
    """The files that `model` stands for; only an index is read. Raises a kind of HeaderError."""
    try:
        model.stat()
    except (OSError, ValueError) as error:
        raise open_error(model, error) from None
    if model.is_dir():
        model = _in_folder(model)
    if model.name.endswith(".json"):
        return _indexed(model)
    folder = model.parent
    return Checkpoint(folder=folder, index=None, shards=(model.name,))


def read_config(model: Path) -> dict[str, Any] | None:
    """The config.json beside a model, or None where there is none. Raises ConfigFormatError and kinds of HeaderError.

    NaN and Infinity are taken, as some published configs contain them.
    """
    path = (model if model.is_dir() else model.parent) / "config.json"
    if not os.path.lexists(path):
        return None
    text = _read_text(path, CONFIG_LIMIT_BYTES, ConfigFormatError)
    config = parse(text, path, Faults.all(ConfigFormatError), constants=True)
    if not isinstance(config, dict):
        raise ConfigFormatError(path, f"JSON, but not an object: {quoted(config)}")
    return config


def _in_folder(folder: Path) -> Path:
    """The file in `folder` that transformers would load: model.safetensors, else the index, else the only one."""
    names = _listing(folder)
    for name in (SINGLE, INDEX):
        if name in names:
            return folder / name
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    weights = [name for name in names if name.endswith(".safetensors")]
    for found in (indexes, weights):
        if len(found) == 1:
            return folder / found[0]
    raise _nothing_in(folder, names, indexes or weights)


def _nothing_in(folder: Path, names: list[str], candidates: list[str]) -> NoCheckpointError:
    if candidates:
        return NoCheckpointError(folder, f"holds {len(candidates)} checkpoints: {quoted(candidates)}")
    if "snapshots" in names:
        snapshots = _listing(folder / "snapshots")
        return NoCheckpointError(
            folder,
            f"a hub cache folder with the snapshots {quoted(snapshots)}",
            remedy=f"give one of the folders in {folder / 'snapshots'}",
        )
    others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
    if others:
        return NoCheckpointError(
            folder,
            f"no .safetensors file; {quoted(others)} are of another format",
            remedy="only safetensors checkpoints can be read: convert it, or download the safetensors files",
        )
    return NoCheckpointError(folder, "no .safetensors file in this folder")


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise open_error(folder, error) from None


def _indexed(index: Path) -> Checkpoint:
    """The checkpoint that an index describes; every shard exists."""
    weight_map = _weight_map(index)
    shards = sorted(set(weight_map.values()))
    names = _listing(index.parent)
    for shard in shards:
        if shard in ("", ".", "..") or "/" in shard or "\0" in shard:
            raise ShardNameError(index, f"names the shard {quoted(shard)}")
    missing = sorted(set(shards) - set(names))
    if missing:
        raise ShardMissingError(index, f"{len(missing)} of its {len(shards)} shards are missing: {quoted(missing)}")
    unnamed = sorted({name for name in names if name.endswith(".safetensors")} - set(shards))
    return Checkpoint(
        folder=index.parent, index=index, shards=tuple(shards), weight_map=weight_map, unnamed=tuple(unnamed)
    )


def _weight_map(index: Path) -> dict[str, str]:
    text = _read_text(index, INDEX_LIMIT_BYTES, IndexFormatError)
    parsed = parse(text, index, Faults.all(IndexFormatError))
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict):
        raise IndexFormatError(index, "no weight_map object", remedy="give the .safetensors.index.json of a checkpoint")
    if not weight_map:
        raise IndexFormatError(index, "an empty weight_map")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise IndexFormatError(index, f"tensor {quoted(tensor)} lies in {quoted(shard)}, which is no file name")
    return weight_map


def _read_text(path: Path, limit_bytes: int, error: type[HeaderError]) -> bytes:
    """A whole small file. Raises `error` above the limit, LfsPointerError for a pointer, a kind of HeaderError else."""
    with open(open_file(path), "rb") as file:
        try:
            text = file.read(limit_bytes + 1)
        except OSError as failure:
            raise open_error(path, failure) from None
    if len(text) > limit_bytes:
        raise error(path, f"more than {limit_bytes:,} bytes")
    if text.startswith(LFS_MAGIC):
        raise LfsPointerError(path, "a Git LFS pointer, not the file itself", remedy="fetch it with `git lfs pull`")
    return text
