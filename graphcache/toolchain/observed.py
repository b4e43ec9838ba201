"""The parts of a key that this machine can see, and why it cannot see the others: for comparing, not for building.

A build needs all parts (`graphcache.toolchain.base.identity`, which says what to install). A reviewer's laptop has no
compiler and still learns which sources have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphcache.errors import ToolchainError
from graphcache.local.memo import Memo
from graphcache.runtime.identity import ask_revision, known_revision, torch_version, vendor_version
from graphcache.toolchain.cross_gcc import cross_gcc_version


@dataclass(frozen=True)
class Seen:
    """parts: of a key, as far as a machine and not a build decides them; missing: the others, each with the reason."""

    parts: Mapping[str, str]
    missing: Mapping[str, str]


def seen(memo: Memo) -> Seen:
    """Raises nothing: what cannot be told is missing."""
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
    return Seen(found, missing)
