"""Which cards this process was given: read from device nodes, never by opening one.

The library cannot be asked: it lists 64 devices on a machine without a card. Nodes keep the host's numbers, so a pod
with two cards may see 1 and 3. A card is several nodes (`npu1mgmt`, `npu1pe0-3`, `npu1ch0`, ...), or in some containers
one file or folder `npu1`.

'Cannot tell' is an answer of its own, `CannotTellError`, and its callers refuse.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from graphcache.errors import GraphcacheError

_NODE = re.compile(r"npu(\d+)([a-z][a-z0-9-]*)?")


class CannotTellError(GraphcacheError):
    """Whether a card can be taken cannot be told, so it is not."""

    name = "cannot-tell"


@dataclass(frozen=True)
class AssignedCard:
    """A card by the number of its nodes, and their names."""

    number: int
    nodes: tuple[str, ...]


def assigned_cards(root: Path) -> tuple[AssignedCard, ...]:
    """Cards that have nodes under `root`, in order of their numbers. None when there is no such folder.

    Raises CannotTellError when the folder cannot be read, or a name looks like a node's and is not one: a reader that
    stripped all but digits once made card 13 of `npu1,npu3`.
    """
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CannotTellError(f"cannot tell which cards are assigned: {root}: {error.strerror}") from error
    nodes: dict[int, list[str]] = {}
    for name in names:
        number = card_number(name)
        if number is not None:
            nodes.setdefault(number, []).append(name)
        elif name.startswith("npu"):
            raise CannotTellError(f"cannot tell which card {root / name} belongs to")
    return tuple(AssignedCard(number, tuple(nodes[number])) for number in sorted(nodes))


def card_number(node: str) -> int | None:
    """3 for `npu3`, `npu3pe0-3` and `npu3mgmt`; None for a name that is no node's, as `npu1,npu3`."""
    match = _NODE.fullmatch(node)
    return int(match[1]) if match else None
