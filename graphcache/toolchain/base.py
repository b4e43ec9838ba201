"""What every toolchain has: its parts of a key, its settings in neutral words, and what a compile gives.

`build_parts` supplies the key's toolchain parts, and the build compares them with what its workers report, so key and
artifact cannot come from two compilers. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from graphcache.errors import ToolchainError, UsageError
from graphcache.local.memo import Memo
from graphcache.runtime.versions import runtime_parts
from graphcache.toolchain.cross_gcc import cross_gcc_version

if TYPE_CHECKING:
    from graphcache.export.program import Exported

# Names and values that a graph's settings may have; `default` is the compiler's own choice and the same as none.
#   tactic:        what kind of graph the compiler chooses its ways of computing for
#   unique-shapes: how many tensor layouts it tries for each operator; fewer compile sooner
#   implicit-casts: whether it may round the factors of a float32 product to bfloat16, as it does by default
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "tactic": ("default", "compute-bound", "io-bound"),
    "unique-shapes": ("default", "1", "2", "4", "8", "16"),
    "implicit-casts": ("default", "off"),
}

# PEs that the vendor can use as one device; a card has 8.
FUSIONS = (1, 2, 4, 8, 16, 32)
DEFAULT_FUSION = 8


@dataclass(frozen=True)
class Compiled:
    """runnable: what a card loads; dfg: the lowered graph; estimate_ns: the compiler's estimate of a call's time."""

    runnable: bytes
    dfg: bytes
    estimate_ns: int | None


class Compiler(Protocol):
    """A compiler in this process, its fusion fixed."""

    @property
    def revision(self) -> str:
        """The `compiler-revision` part of the key."""

    def compile(self, exported: Exported, settings: Mapping[str, str]) -> Compiled:
        """Raises CompileError when the compiler refuses the graph."""


class CompileError(ToolchainError):
    """The compiler could not compile a graph."""

    name = "compile"


def build_parts(fusion: int, memo: Memo, revision: str | None = None) -> dict[str, str]:
    """All parts of a key but the program and the settings; about 5 ms once the memo knows them.

    Raises ToolchainError, saying what to install, when the vendor, its torch or the cross gcc is not as it must be.
    """
    check_fusion(fusion)
    return {**runtime_parts(fusion, memo, revision), "cross-gcc": cross_gcc_version(memo)}


def check_fusion(fusion: int) -> None:
    if fusion not in FUSIONS:
        raise UsageError(f"fusion {fusion} is not one of {', '.join(map(str, FUSIONS))}", hint="a card has 8 PEs")


def check_settings(settings: Mapping[str, str]) -> None:
    """Raises UsageError for a name or value outside SETTINGS: it would be keyed and then ignored."""
    for name, value in settings.items():
        if value not in SETTINGS.get(name, ()):
            known = "; ".join(f"{n}: {', '.join(values)}" for n, values in SETTINGS.items())
            raise UsageError(f"no compiler setting {name}={value!r}", hint=f"known settings: {known}")
