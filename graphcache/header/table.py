"""The tensor table: name, dtype and shape of every tensor of a checkpoint, read from safetensors headers only.

Two saves of one model give equal tables whatever the order of tensors, metadata and shards in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from graphcache.header.errors import TensorDuplicatedError, TensorMissingError, quoted
from graphcache.header.files import Checkpoint, find_checkpoint, read_config
from graphcache.header.groups import GroupError, Shape, TensorGroup, collapse, expand
from graphcache.header.shard import Typed, read_header

__all__ = ["Notice", "TensorGroup", "TensorInfo", "TensorTable", "read_config", "read_table"]


@dataclass(frozen=True, slots=True)
class TensorInfo(Typed):
    """One tensor. Its place is left out of comparisons: it differs between two saves of one model.

    dtype:      as the header spells it: `BF16`
    shape:      sizes; empty for a scalar
    size_bytes: what it takes in the file
    shard:      the file's name in the checkpoint's folder; empty in a table made from groups
    begin, end: offsets in the file, in bytes
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shard: str = field(default="", compare=False)
    begin: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Notice:
    """Something about a checkpoint that is odd and stops nothing: a kebab-case name, the file, the fact."""

    name: str
    file: str
    fact: str


@dataclass(frozen=True)
class TensorTable:
    """All tensors of a checkpoint, sorted by name; equal when names, dtypes and shapes are.

    shards:            the files that were read, in order
    header_bytes_read: how many bytes of them were read
    notices:           what is odd about the checkpoint
    """

    tensors: tuple[TensorInfo, ...]
    shards: tuple[Path, ...] = field(default=(), compare=False)
    header_bytes_read: int = field(default=0, compare=False)
    notices: tuple[Notice, ...] = field(default=(), compare=False)

    @cached_property
    def _by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def get(self, name: str) -> TensorInfo | None:
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> TensorInfo:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def unknown(self) -> tuple[TensorInfo, ...]:
        """The tensors whose dtype this program does not know."""
        return tuple(tensor for tensor in self.tensors if not tensor.known)

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    def groups(self) -> tuple[TensorGroup, ...]:
        """The table in some fifteen lines; `from_groups` gives an equal table back."""
        return collapse((t.name, Shape(t.dtype, t.shape, t.size_bytes)) for t in self.tensors)

    @classmethod
    def from_groups(cls, groups: Iterable[TensorGroup]) -> TensorTable:
        """The table that groups stand for. Raises GroupError for groups that no table can have given."""
        table = cls(tuple(sorted((TensorInfo(name, *shape) for name, shape in expand(groups)), key=_name)))
        if len(table._by_name) != len(table):
            raise GroupError("two groups stand for the same tensor")
        return table


def read_table(model: Path) -> TensorTable:
    """The tensor table of a MODEL: a .safetensors file, an .index.json, a checkpoint folder, a hub snapshot folder.

    Raises a kind of HeaderError, naming the file, for the first thing found wrong.
    """
    checkpoint = find_checkpoint(model)
    found: dict[str, TensorInfo] = {}
    bytes_read = 0
    for shard in checkpoint.shards:
        header = read_header(checkpoint.folder / shard)
        bytes_read += header.bytes_read
        for name, dtype, shape, begin, end in header.entries:
            if name in found:
                raise TensorDuplicatedError(
                    checkpoint.folder / shard, f"holds tensor {quoted(name)}, which {found[name].shard} holds too"
                )
            found[name] = TensorInfo(name, dtype, shape, end - begin, shard, begin, end)
    _check_index(checkpoint, found)
    return TensorTable(
        tuple(sorted(found.values(), key=_name)),
        tuple(checkpoint.folder / shard for shard in checkpoint.shards),
        bytes_read,
        tuple(_notices(checkpoint, found)),
    )


def _name(tensor: TensorInfo) -> str:
    return tensor.name


def _check_index(checkpoint: Checkpoint, found: dict[str, TensorInfo]) -> None:
    """Every tensor of the index lies where the index says."""
    for name, shard in checkpoint.weight_map.items():
        if name not in found or found[name].shard != shard:
            where = f"; {found[name].shard} holds it" if name in found else ""
            raise TensorMissingError(checkpoint.folder / shard, f"lacks tensor {quoted(name)} of the index{where}")


def _notices(checkpoint: Checkpoint, found: dict[str, TensorInfo]) -> Iterator[Notice]:
    for shard in checkpoint.unnamed:
        file = str(checkpoint.folder / shard)
        yield Notice("unnamed-shard", file, "lies beside the checkpoint, which does not name it")
    if checkpoint.index is None:
        return
    for name in sorted(found.keys() - checkpoint.weight_map.keys()):
        file = str(checkpoint.folder / found[name].shard)
        yield Notice("unlisted-tensor", file, f"tensor {quoted(name)} is not in the index; it is in the table")
