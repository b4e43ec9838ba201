"""What `verify --rebuild` says of one entry, and which entries this machine can compile or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from graphcache.key import parts_of
from graphcache.store.base import Entry
from graphcache.store.find import differences
from graphcache.toolchain.base import FUSIONS


@dataclass(frozen=True)
class Verdict:
    """state:  `skipped` when this machine cannot tell, which is no fault of the entry
    detail: why, or what was found
    facts:  figures, for --json
    """

    entry: Entry
    state: Literal["passed", "failed", "skipped"]
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.entry.key.digest,
            "graph": self.entry.graph.name,
            "state": self.state,
            "detail": self.detail,
            **self.facts,
        }


def by_fusion(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Entries by the fusion that they were compiled for, since a process can have one.

    An entry whose fusion the vendor does not have is listed under 1, where its toolchain then differs.
    """
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        named = entry.key.parts.get("fusion", "")
        fusion = next((fusion for fusion in FUSIONS if str(fusion) == named), 1)
        found.setdefault(fusion, []).append(entry)
    return dict(sorted(found.items()))


def other_toolchain(entry: Entry, toolchain: Mapping[str, str], parts: Sequence[str]) -> str:
    """In which of `parts` the entry's toolchain is not `toolchain`, for people; empty when in none."""
    found = differences(entry, parts_of(toolchain, entry.graph.settings))
    return "; ".join(str(difference) for difference in found if difference.part in parts)
