"""The parts of a key that are visible on this machine, and why others are not: for comparing, not for building.

A build needs all parts (`graphcache.toolchain.base.build_parts`, which says what to install). A reviewer's laptop has
no compiler and still learns which sources have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphcache.errors import ToolchainError
from graphcache.local.memo import Memo
from graphcache.runtime.versions import ask_revision, known_revision, torch_version, vendor_version
from graphcache.toolchain.cross_gcc import cross_gcc_version


@dataclass(frozen=True)
class VisibleParts:
    """parts: of a key, those that the machine decides; missing: those of them that it lacks, each with the reason."""

    parts: Mapping[str, str]
    missing: Mapping[str, str]


def visible_parts(memo: Memo) -> VisibleParts:
    """Never raises: a part that cannot be told is in `missing`, with the reason."""
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    sources: dict[str, Callable[[], str]] = {
        "furiosa-torch": vendor_version,
        "compiler-revision": lambda: known_revision(memo) or ask_revision(memo),
        "torch": torch_version,
        "cross-gcc": lambda: cross_gcc_version(memo),
    }
    for name, source in sources.items():
        if "furiosa-torch" in missing and name in ("compiler-revision", "torch"):
            missing[name] = missing["furiosa-torch"]
            continue
        try:
            found[name] = source()
        except ToolchainError as error:
            missing[name] = error.message
    return VisibleParts(found, missing)
