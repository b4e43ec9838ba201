"""safetensors files written and read a tensor at a time, so that saving needs no second copy of a model.

The checksum of the whole file is made while it is written, and checked while it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import xxhash
from torch import Tensor

from graphcache.errors import GraphcacheError
from graphcache.graph import TensorSpec
from graphcache.header.errors import HeaderError
from graphcache.header.framing import framed
from graphcache.header.table import read_table
from trainer.host.tensor_bytes import bytes_of, read_tensor, write_all

# torch's dtype names, and how safetensors spells them.
SPELLED = {"float32": "F32", "bfloat16": "BF16"}
DTYPES = {spelled: getattr(torch, name) for name, spelled in SPELLED.items()}


class CheckpointError(GraphcacheError):
    """A checkpoint cannot be written, or none can be read."""

    name = "checkpoint"


@dataclass(frozen=True)
class FileFacts:
    """What the completion marker says of a file: its size and its XXH3-128."""

    size_bytes: int
    xxh3_128: str

    def as_json(self) -> dict[str, Any]:
        return {"size_bytes": self.size_bytes, "xxh3_128": self.xxh3_128}


class TensorWriter:
    """Writes the tensors of `layout`, in its order, to a new file. Synced when the `with` block ends well."""

    def __init__(self, path: Path, layout: Sequence[TensorSpec]) -> None:
        self._path = path
        self._layout = layout
        self._next = 0
        self._hash = xxhash.xxh3_128()
        self._size_bytes = 0

    def __enter__(self) -> TensorWriter:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._write(memoryview(_header(self._layout)))
        return self

    def write(self, tensor: Tensor) -> None:
        """The next tensor of the layout; any shape with as many elements."""
        spec = self._layout[self._next]
        self._next += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        assert (dtype, tensor.numel()) == (spec.dtype, spec.elements), f"{spec} is not {dtype} {tuple(tensor.shape)}"
        self._write(bytes_of(tensor))

    @property
    def facts(self) -> FileFacts:
        return FileFacts(self._size_bytes, self._hash.hexdigest())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self._next == len(self._layout), f"{self._path} lacks {self._layout[self._next]}"
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _write(self, data: memoryview) -> None:
        self._hash.update(data)
        self._size_bytes += len(data)
        write_all(self._fd, data)


def _header(layout: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in layout:
        offsets = [offset, offset + spec.size_bytes]
        entries[spec.name] = {"dtype": SPELLED[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
        offset += spec.size_bytes
    return framed(json.dumps(entries, separators=(",", ":")).encode("ascii"), alignment=8)


def read_tensors(path: Path, facts: FileFacts, layout: Sequence[TensorSpec]) -> Mapping[str, Tensor]:
    """The tensors of `layout`, which must be the file's, by name, in memory of their own.

    Raises CheckpointError when the file is not, byte for byte, the one that `facts` were taken of, or holds other
    tensors.
    """
    hint = "delete this checkpoint's folder to resume from the one before"
    try:
        table = read_table(path)
    except HeaderError as error:
        raise CheckpointError(f"{path} is not as it was written: {error.message}", hint=hint) from error
    expected = {spec.name: (SPELLED[spec.dtype], spec.shape) for spec in layout}
    found = {info.name: (info.dtype, info.shape) for info in table}
    if found != expected:
        differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise CheckpointError(f"{path} holds another model's state: {', '.join(differing[:5])} differ")
    digest = xxhash.xxh3_128()
    tensors = {}
    with path.open("rb", buffering=0) as file:
        digest.update(file.read(min(info.begin for info in table)))
        for info in sorted(table, key=lambda i: i.begin):
            tensor = read_tensor(file.fileno(), info.shape, DTYPES[info.dtype], info.begin)
            digest.update(bytes_of(tensor))
            tensors[info.name] = tensor
    if digest.hexdigest() != facts.xxh3_128:
        raise CheckpointError(
            f"{path} is not as it was written: XXH3-128 {digest.hexdigest()}, written as {facts.xxh3_128}", hint=hint
        )
    return tensors
