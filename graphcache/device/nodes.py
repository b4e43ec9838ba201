"""Which cards this process was given: read from device nodes, never by opening one.

The library cannot be asked: it lists 64 devices on a machine without a card. Nodes keep the host's numbers, so a pod
with two cards may see 1 and 3. A card is several nodes (`npu1mgmt`, `npu1pe0-3`, `npu1ch0`, ...), or in some containers
one file or folder `npu1`.

'Cannot tell' is an answer of its own, `CannotTellError`, and its callers refuse.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphcache.errors import GraphcacheError

_NODE = re.compile(r"npu(\d+)([a-z][a-z0-9-]*)?")
# A file by what it is, whatever its name: (kind, 0, number) of a device, else (0, file system, inode).
Identity = tuple[int, int, int]


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


@dataclass(frozen=True)
class NodeFiles:
    """Numbers of the cards that nodes belong to, by what may be known of an open file.

    folders: where nodes are, each with its `/`; for nodes that were deleted, and nodes of other containers
    files:   by the file itself, which has other names where a node is a link, or was made twice
    mapped:  by device and inode as /proc/*/maps has them, `00:1a 77`
    """

    folders: tuple[str, ...]
    files: dict[Identity, int]
    mapped: dict[str, int]

    @classmethod
    def under(cls, root: Path) -> NodeFiles:
        """Raises CannotTellError."""
        found = cls((f"{root}/", f"{os.path.realpath(root)}/"), {}, {})
        for number, node in ((card.number, root / name) for card in assigned_cards(root) for name in card.nodes):
            try:
                for path in _files(node):
                    found._add(number, path.stat())
            except OSError as error:
                raise CannotTellError(f"cannot tell whether a card is held: {node}: {error.strerror}") from error
        return found

    def _add(self, number: int, status: os.stat_result) -> None:
        self.files[identity(status)] = number
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        self.mapped[f"{device} {status.st_ino}"] = number

    def by_path(self, path: str) -> int | None:
        for folder in self.folders:
            number = card_number(path.removeprefix(folder).partition("/")[0]) if path.startswith(folder) else None
            if number is not None:
                return number
        return None


def _files(node: Path) -> Iterator[Path]:
    """A node, and all that is in it where it is a folder. Raises OSError."""
    yield node
    if node.is_dir():
        for inside in node.iterdir():
            yield from _files(inside)


def identity(status: os.stat_result) -> Identity:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return stat.S_IFMT(status.st_mode), 0, status.st_rdev
    return 0, status.st_dev, status.st_ino
