"""The key of an artifact: named parts, hashed as canonical JSON.

An artifact's bytes are a function of its program and of the toolchain that compiled it, so the parts are the program's
digest and each toolchain fact under its own name. The parts themselves are kept beside the artifact, not only their
digest: a look-up compares all of them, and a miss names the one that differs. `docs/keys.md` explains each part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphcache.digest import json_sha256

PROGRAM = "program"
# Names the canonical form of programs. Another form gives other digests, so what was remembered under it is void.
PROGRAM_FORMAT = "graphcache-program-1"
SETTING = "settings."
DEFAULT = "default"

# Inputs of a compile that could be thought to belong into a key, and why they do not.
LEFT_OUT = {
    "source": "reaches the artifact only through the program; with it, every refactoring would compile again",
    "graph name and argument names": "for people; two catalogs may name one program differently",
    "weight values": "a compile reads shapes and dtypes only",
    "host": "path, hostname, user, core count: none reaches the artifact, and any would stop sharing",
    "environment": "the compiler reads it, so the processes that compile are given none of it but where things are, "
    "how text is written and how many threads there may be (graphcache.process.helper.PASSED_ON)",
    "python and numpy version": "they run the exporter, whose result is the program",
    "linux distribution and C library": "the artifact is linked by the cross gcc against its own sysroot, "
    "which the cross gcc's version stands for",
    "graphcache's own version": "the artifact's format is in the artifact; the recipe is in the program's digest",
    "card": "compiles need none; a card's model is fixed by the compiler (RNGD)",
}

# Parts that only a machine with the compiler can see: a machine that runs artifacts accepts any value of them.
BUILD_ONLY = {"cross-gcc": "called for the compiler's last stage; a training pod need not have it"}

_PROGRAM_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Difference:
    """One part that two keys do not share; None where a key lacks it."""

    part: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.part} {self.old or 'not given'} -> {self.new or 'not given'}"


def parts_of(toolchain: Mapping[str, str], settings: Mapping[str, str] | None) -> dict[str, str]:
    """The parts of a key besides its program: the toolchain's facts, and a graph's settings under their own names.

    A setting of `default` is the compiler's own choice and no part, as if it was not given.
    """
    return {**toolchain, **{SETTING + name: value for name, value in (settings or {}).items() if value != DEFAULT}}


def compare_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    """The parts that differ, sorted by name: what to change in `old` to get `new`."""
    pairs = [Difference(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]
    return [pair for pair in pairs if pair.old != pair.new]


@dataclass(frozen=True, eq=True)
class Key:
    """Named parts, `program` among them. Equal when all parts are equal.

    Raises ValueError for a part that could not mean the same on every machine: an empty value (a fact is given or
    absent, so that there is one way to say 'not given'), an absolute path, or a program that is not a SHA-256.
    """

    parts: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, value in self.parts.items():
            _check_part(name, value)
        if not _PROGRAM_DIGEST.fullmatch(self.parts.get(PROGRAM, "")):
            raise ValueError(f"a key's program is a SHA-256 of 64 hexadecimal digits, not {self.parts.get(PROGRAM)!r}")

    def __hash__(self) -> int:
        return hash(tuple(self.parts.items()))

    @classmethod
    def of(cls, program: str, toolchain: Mapping[str, str], settings: Mapping[str, str] | None = None) -> Key:
        """The key of `program` compiled by `toolchain` with a graph's `settings`.

        A setting of `default` is the compiler's own choice, so it is the same key as no setting at all; and no
        settings (`{}`) are the same key as settings that were not given.
        """
        return cls({**parts_of(toolchain, settings), PROGRAM: program})

    @property
    def program(self) -> str:
        return self.parts[PROGRAM]

    @property
    def digest(self) -> str:
        """SHA-256 of the parts' canonical JSON, 64 hexadecimal digits."""
        return json_sha256(self.parts)


def _check_part(name: str, value: str) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise ValueError(f"a key's parts are strings, not {name!r}: {value!r}")
    if not name or not value:
        raise ValueError(f"a key's part has a name and a value, not {name!r}: {value!r}")
    if value.startswith("/"):
        raise ValueError(f"part {name!r} holds the absolute path {value!r}; a key holds nothing about a machine")
