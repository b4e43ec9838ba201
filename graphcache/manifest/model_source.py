"""What `--shapes-from` may name: a checkpoint, or a manifest, which stands for the checkpoint that it was made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.header.table import TensorTable, read_config, read_table
from graphcache.manifest.file import is_manifest, read_manifest


@dataclass(frozen=True)
class ModelSource:
    """A model as catalogs see it. `name` is for people and for a manifest's file name; config is None without one."""

    name: str
    table: TensorTable
    config: Mapping[str, Any] | None


def load(path: Path) -> ModelSource:
    """Raises kinds of HeaderError, of ManifestError, and GroupError."""
    if path.suffix == ".json" and is_manifest(path):
        manifest = read_manifest(path)
        return ModelSource(manifest.model, TensorTable.from_groups(manifest.groups), manifest.config)
    return ModelSource(model_name(path), read_table(path), read_config(path))


def without_model(catalogs: Iterable[str]) -> ModelSource:
    """For catalogs that need no checkpoint."""
    return ModelSource("-".join(catalogs), TensorTable.from_groups(()), None)


def model_name(path: Path) -> str:
    """A checkpoint's name: its folder's, the repository's for a hub snapshot, the file's where the folder has none."""
    path = path.absolute()
    folder = path if path.is_dir() else path.parent
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or path.name.partition(".")[0]
