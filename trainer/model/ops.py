"""The operations on one device that a pass through a layer, the head or an update is made of, as data. No torch.

Whatever a pass does is a list of these, with every buffer by name: the runners carry the list out, and the memory plan
adds up the same list. A buffer that an operation makes and no later one frees is left to whoever asked for the pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from graphcache.graph import TensorSpec


@dataclass(frozen=True)
class Call:
    """Call the graph `part`; then free the arguments in `frees`. A result may take the name of what is freed."""

    part: str
    args: tuple[str, ...]
    results: tuple[TensorSpec, ...]
    frees: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """The memory of buffer `of` as one or more others, which lie end to end in it; `of` is used up."""

    of: str
    results: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Upload:
    """A new buffer with values from the host."""

    result: TensorSpec


@dataclass(frozen=True)
class Download:
    """Copy a buffer's values to the host; free it unless `keeps`."""

    of: str
    keeps: bool = False


@dataclass(frozen=True)
class Free:
    names: tuple[str, ...]


Op = Call | View | Upload | Download | Free


def graph_calls(ops: Iterable[Op]) -> Counter[str]:
    """How often each part is called."""
    return Counter(op.part for op in ops if isinstance(op, Call))
