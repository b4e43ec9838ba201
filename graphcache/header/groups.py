"""The compact form of a tensor table: tensors that differ in their layer's number only are one group.

`model.layers.{}.mlp.down_proj.weight  0-31  BF16 [4096, 14336]` stands for 32 tensors, so that a manifest holds the
table of a model in some fifteen lines. Expanding gives back every name, dtype and shape exactly.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from graphcache.errors import GraphcacheError
from graphcache.header.errors import quoted
from graphcache.header.shard import DTYPE_BITS, Typed

PLACE = "{}"
# Numbers past these limits stay in the pattern as they are; real names hold two (layer, expert).
MAX_PLACES = 4
NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")
MAX_TENSORS = 10_000_000


class GroupError(GraphcacheError):
    """A group, read from a manifest, that stands for nothing."""

    name = "tensor-group"


class Shape(NamedTuple):
    """What the tensors of a group have in common; `size_bytes` is of one of them."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class TensorGroup(Typed):
    """Tensors of one dtype and shape whose names differ in numbers only.

    pattern:    the name, `{}` for each number that varies
    indices:    the numbers: `0-31`, `0-3,5`, one such list a place joined by ` x ` (every combination exists);
                empty: the pattern is a tensor's name as it stands
    size_bytes: of one tensor
    """

    pattern: str
    indices: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def count(self) -> int:
        """How many tensors it stands for."""
        return math.prod(_range_count(ranges, self) for ranges in self.indices.split(" x ")) if self.indices else 1

    @property
    def label(self) -> str:
        """The pattern with its indices in their places, for people: `model.layers.{0-31}.mlp.down_proj.weight`."""
        label = self.pattern
        for ranges in self.indices.split(" x ") if self.indices else ():
            label = label.replace(PLACE, f"{{{ranges}}}", 1)
        return label

    def names(self) -> Iterator[str]:
        """The tensors' names. Raises GroupError for indices that do not fit the pattern."""
        if not self.indices:
            yield self.pattern
            return
        components = self.pattern.split(".")
        places = [i for i, component in enumerate(components) if component == PLACE]
        lists = [_numbers(ranges, self) for ranges in self.indices.split(" x ")]
        if len(places) != len(lists):
            raise GroupError(f"group {quoted(self.pattern)} has {len(places)} places and indices {self.indices!r}")
        for numbers in product(*lists):
            for place, number in zip(places, numbers, strict=True):
                components[place] = str(number)
            yield ".".join(components)

    def as_json(self) -> dict[str, Any]:
        """`from_json` gives the group back. The size is left out where dtype and shape give it."""
        value = {"pattern": self.pattern, "indices": self.indices, "dtype": self.dtype, "shape": list(self.shape)}
        return value if self.known else {**value, "size_bytes": self.size_bytes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TensorGroup:
        """Raises GroupError when a field is missing or of another type."""
        try:
            pattern, indices, dtype, shape = (value[field] for field in ("pattern", "indices", "dtype", "shape"))
            texts = isinstance(shape, list) and all(isinstance(text, str) for text in (pattern, indices, dtype))
            size_bytes = math.prod(shape) * DTYPE_BITS[dtype] // 8 if dtype in DTYPE_BITS else value["size_bytes"]
            sizes = all(type(size) is int and size >= 0 for size in (*shape, size_bytes))
        except (KeyError, TypeError):
            raise GroupError(f"not a tensor group: {quoted(value)}") from None
        if not (texts and sizes):
            raise GroupError(f"not a tensor group: {quoted(value)}")
        return cls(pattern=pattern, indices=indices, dtype=dtype, shape=tuple(shape), size_bytes=size_bytes)


def collapse(tensors: Iterable[tuple[str, Shape]]) -> tuple[TensorGroup, ...]:
    """The fewest groups that this simple rule finds for tensors of different names; sorted, whatever their order."""
    # By the count of numbers too: a tensor may be called `{}` beside one that is called `0`.
    found: dict[tuple[str, Shape, int], set[tuple[int, ...]]] = defaultdict(set)
    for name, shape in tensors:
        pattern, numbers = _split(name)
        found[pattern, shape, len(numbers)].add(numbers)
    groups = [
        TensorGroup(
            pattern=pattern,
            indices=" x ".join(_ranges(numbers) for numbers in box),
            dtype=dtype,
            shape=shape,
            size_bytes=size_bytes,
        )
        for (pattern, (dtype, shape, size_bytes), _), members in found.items()
        for box in _boxes(members)
    ]
    return tuple(sorted(groups, key=lambda g: (g.pattern, g.indices, g.dtype, g.shape, g.size_bytes)))


def expand(groups: Iterable[TensorGroup]) -> Iterator[tuple[str, Shape]]:
    """The tensors that groups stand for. Raises GroupError for broken groups and for more than MAX_TENSORS."""
    groups = tuple(groups)
    total = sum(group.count for group in groups)
    if total > MAX_TENSORS:
        raise GroupError(f"the groups stand for {total:,} tensors; the limit is {MAX_TENSORS:,}")
    for group in groups:
        shape = Shape(group.dtype, group.shape, group.size_bytes)
        for name in group.names():
            yield name, shape


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    """A name's pattern and its numbers; a name in which `{}` itself stands is its own pattern."""
    components = name.split(".")
    if PLACE in components:
        return name, ()
    numbers: list[int] = []
    for i, component in enumerate(components):
        if len(numbers) < MAX_PLACES and NUMBER.fullmatch(component):
            numbers.append(int(component))
            components[i] = PLACE
    return ".".join(components), tuple(numbers)


def _boxes(members: set[tuple[int, ...]]) -> Iterator[tuple[frozenset[int], ...]]:
    """Disjoint products of number sets that together are `members`: layers with the same experts become one."""
    if members == {()}:
        yield ()
        return
    rest_of: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for first, *rest in members:
        rest_of[first].add(tuple(rest))
    firsts: dict[frozenset[tuple[int, ...]], set[int]] = defaultdict(set)
    for number, rests in rest_of.items():
        firsts[frozenset(rests)].add(number)
    for shared, numbers in firsts.items():
        for box in _boxes(set(shared)):
            yield (frozenset(numbers), *box)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in runs)


def _parse_ranges(text: str, group: TensorGroup) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not NUMBER.fullmatch(low) or (dash and not NUMBER.fullmatch(high)):
            raise GroupError(f"group {quoted(group.pattern)} has indices {quoted(group.indices)}")
        yield int(low), int(high or low)


def _range_count(text: str, group: TensorGroup) -> int:
    return sum(max(0, high - low + 1) for low, high in _parse_ranges(text, group))


def _numbers(text: str, group: TensorGroup) -> list[int]:
    return [number for low, high in _parse_ranges(text, group) for number in range(low, high + 1)]
