"""Finding an artifact by the parts of a key that a machine knows, and saying why there is none.

A builder knows every part of a key. A training pod does not: it has no cross compiler. So a pod looks for an entry of
the program whose parts equal all that it knows, and takes any value of the parts that only a builder can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from graphcache.errors import UsageError
from graphcache.key import BUILD_ONLY, PROGRAM, SETTING, Difference, compare_parts
from graphcache.proof.verdict import Verdict
from graphcache.store.base import Entry, Store

# As git shows commits: enough to be unique among thousands, short enough for a line.
KEY_DIGITS = 12
# Why there is no artifact to use: nobody remembers the program of this source, which is new or was changed (`source`);
# nobody compiled the program; only under another toolchain, or other settings; what there is computes the wrong thing,
# is damaged, or is not signed as it has to be; the compiler refused it.
Miss = Literal["source", "not built", "toolchain", "settings", "disproven", "damaged", "unsigned", "refused"]


@dataclass(frozen=True)
class Found:
    """entry: the match, checked; None when there is none.

    unsigned: for a miss, whether one that matches is whole, and not signed as it has to be
    disproven: for a miss, the verdict on an artifact that matches and computes the wrong thing, so that it is no match
    closest and differing: for a miss, the entry of the same program that differs in the fewest parts, and these parts
    (its value -> the wanted one). Both are empty when no entry has the program.
    """

    entry: Entry | None
    closest: Entry | None = None
    differing: tuple[Difference, ...] = ()
    disproven: Verdict | None = None
    unsigned: bool = False

    @property
    def reason(self) -> str:
        """Why there is none, for people; empty for a match."""
        if self.entry is not None:
            return ""
        if self.disproven is not None:
            return self.disproven.text
        if self.closest is None:
            return "no artifact of this program"
        if not self.differing:
            return "its artifact is damaged, or not signed as it has to be"
        return "; ".join(str(difference) for difference in self.differing)

    @property
    def miss(self) -> Miss | None:
        """The kind of its reason; None for a match."""
        if self.entry is not None:
            return None
        if self.disproven is not None:
            return "disproven"
        if self.closest is None:
            return "not built"
        if not self.differing:
            return "unsigned" if self.unsigned else "damaged"
        return "settings" if all(each.part.startswith(SETTING) for each in self.differing) else "toolchain"


def find(store: Store, program: str, parts: Mapping[str, str]) -> Found:
    """The newest whole entry of `program` whose parts equal all of `parts`, or why there is none.

    A part that an entry has and `parts` lacks is a difference, unless it is one of `graphcache.key.BUILD_ONLY`.
    """
    candidates = [(differences(entry, parts), entry) for entry in store.by_program(program)]
    matches = [entry for differing, entry in candidates if not differing]
    disproven = None
    for entry in sorted(matches, key=lambda e: (e.created, e.key.digest), reverse=True):
        verdict = store.verdict(entry)
        if verdict is not None and verdict.state == "disproven":
            disproven = verdict
        elif store.lookup(entry.key) is not None:
            return Found(entry)
    if disproven is not None:
        return Found(None, disproven=disproven)
    if not candidates:
        return Found(None)
    differing, closest = min(candidates, key=lambda pair: (len(pair[0]), pair[1].key.digest))
    return Found(None, closest, tuple(differing), unsigned=any(store.refuses(entry) for entry in matches))


def differences(entry: Entry, parts: Mapping[str, str]) -> list[Difference]:
    """Parts in which `entry` is not what `parts` asks for, sorted."""
    found = [each for each in compare_parts(entry.key.parts, parts) if each.part != PROGRAM]
    return [each for each in found if not (each.part in BUILD_ONLY and each.part not in parts)]


def by_prefix(store: Store, prefix: str) -> Entry:
    """The one entry whose key digest begins with `prefix`. Raises UsageError for none, or for several, naming them."""
    found = [entry for entry in store.entries() if entry.key.digest.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no entry has a key that begins with {prefix!r}", hint="graphcache ls lists the keys")
    named = ", ".join(f"{entry.key.digest[:KEY_DIGITS]} ({entry.graph.name})" for entry in found[:8])
    more = f", and {len(found) - 8} more" if len(found) > 8 else ""
    raise UsageError(
        f"{len(found)} entries have keys that begin with {prefix!r}: {named}{more}", hint="give more digits"
    )
