"""The vendor's compiler half, for both of its versions, in a process of its own (`graphcache.build.worker`).

Everything goes through a private, empty cache folder. The vendor's cache is on by default, trusts what it reads
without a check, and cannot be turned off as documented, so a compile in its usual folder could return damaged bytes.
The same folder is where the compiler leaves its summary, whose file names hold its estimate of device time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcache.errors import ToolchainError
from graphcache.export.program import Exported
from graphcache.runtime.furiosa import set_fusion
from graphcache.runtime.versions import loaded_revision
from graphcache.toolchain.base import Compiled, CompileError, check_settings
from graphcache.toolchain.refused_source import blamed, dropped_results
from graphcache.vendor import layouts as vendor

# `PreLower_O317_cost_16758_hidable_false_rank_1.log`: a way to compute operator 317 and its cost; the unit looks like
# nanoseconds.
_COST = re.compile(r"_(O\d+)_cost_(\d+)(?:\D|$)")
_NO_COST = 1 << 63


class FuriosaCompiler:
    """furiosa-torch in this process. Raises FusionError when the process's fusion is fixed at another value."""

    def __init__(self, fusion: int, scratch: Path) -> None:
        """scratch: a folder of this process alone; its content is thrown away."""
        # Before anything else: any read of the fusion fixes it at 1.
        set_fusion(fusion)
        self.revision = loaded_revision()
        self._cache = scratch / "vendor-cache"
        self._compiler = vendor.resolve(vendor.layout().compiler)

    def compile(self, exported: Exported, settings: Mapping[str, str]) -> Compiled:
        """Compiles and lowers. Raises CompileError with the compiler's message, UsageError for unknown settings."""
        config = _config(settings)
        module = exported.module
        self._wipe()
        try:
            with vendor.panics_raised(), self._private_cache():
                module = _prepare(module)
                _check_results(exported, module)
                lowered = self._compiler.lower(module, config)
                runnable = self._finish(lowered, module, config)
                executor = vendor.resolve(vendor.layout().executor)(lowered)
                return Compiled(bytes(runnable.serialize()), bytes(executor.serialize()), estimate_ns(self._cache))
        except vendor.VendorError as error:
            raise CompileError(blamed(module, error)) from error
        finally:
            self._wipe()

    def _finish(self, lowered: Any, module: Any, config: Any) -> Any:
        """What a card loads. Nearly all of a compile is lowering: going on from the lowered graph gives the same bytes
        in half the time (5.6 CPU s against 5.0 + 4.8, a 576 x 576 product). 2026.2 cannot."""
        return lowered.compile(config) if hasattr(lowered, "compile") else self._compiler.compile(module, config)

    def _private_cache(self) -> Any:
        return vendor.resolve(vendor.layout().cache_context)(root_dir=str(self._cache), summary=True)

    def _wipe(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)
        if self._cache.exists():
            raise ToolchainError(f"the private compiler cache {self._cache} cannot be emptied")


def _check_results(exported: Exported, prepared: Any) -> None:
    """Raises CompileError when the vendor left results out: its own modules make them up again, a runnable cannot."""
    kept = len(prepared.graph.output_node().args[0])
    if kept != len(exported.outputs):
        raise CompileError(
            f"the compiler gives {kept} of {len(exported.outputs)} results: "
            + dropped_results(exported.module, len(exported.outputs) - kept),
            hint="leave them out of the graph, or return copies (clone)",
        )


def estimate_ns(summary: Path) -> int | None:
    """The compiler's estimate of a call's device time: the cheapest way of each operator, summed. None without one.

    It does not see that operators overlap, nor what a call itself costs: good for comparing graphs, not for planning.
    """
    cheapest: dict[str, int] = {}
    for path in summary.rglob("*_cost_*"):
        found = _COST.search(path.name)
        if found:
            operator, cost = found[1], int(found[2])
            cheapest[operator] = min(cost, cheapest.get(operator, cost))
    # The compiler writes a cost near 2^64 for an operator that it has no estimate of.
    return sum(cheapest.values()) if cheapest and max(cheapest.values()) < _NO_COST else None


def _config(settings: Mapping[str, str]) -> Any:
    check_settings(settings)
    layout = vendor.layout()
    hint = dict(layout.tactics)[settings.get("tactic", "default")]
    shapes = settings.get("unique-shapes", "default")
    return vendor.resolve(layout.config)(
        tactic_hint=getattr(vendor.resolve(layout.hints), hint),
        max_num_unique_shapes=None if shapes == "default" else int(shapes),
        implicit_type_casting=settings.get("implicit-casts") != "off",
    )


def _prepare(module: Any) -> Any:
    """The vendor's own passes over an exported program: a list of them in 2026.2, one function in 2026.4."""
    passes = vendor.resolve(vendor.layout().passes)
    if callable(passes):
        prepared, _ = passes(module, None)
        return prepared
    for one in passes:
        module = one(module)
    return module
