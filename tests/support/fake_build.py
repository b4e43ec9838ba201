"""Builds with the fake worker: everything of `graphcache.build.build` but torch and the vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphcache.build import build as build_module
from graphcache.build.build import BuildOptions, build
from graphcache.build.report import Listener, Report
from graphcache.costs import Costs
from graphcache.graph import Graph
from graphcache.local.memo import Memo, memo_of
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from tests.support.fake_worker import REVISION, with_variables

OPTIONS = BuildOptions(jobs=2, timeout_secs=60, memory_bytes=1 << 30)


def fake_toolchain(fusion: int = 8, memo: Memo | None = None, revision: str | None = None) -> dict[str, str]:
    """Stands for `graphcache.toolchain.base.build_parts`."""
    return {
        "furiosa-torch": "0.fake",
        "compiler-revision": revision or REVISION,
        "torch": "0.fake",
        "cross-gcc": "0.fake",
        "fusion": str(fusion),
    }


class FakeMachine:
    """A cache, and a record of what was compiled into it, across builds and processes.

    known:  the compiler's revision as the machine remembers it; None before its first build
    worker: the command line of a worker that writes to the record
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = LocalStore(folder / "cache")
        self.known: str | None = None
        self._compiles = folder / "compiles"
        self.worker = with_variables(FAKE_COMPILES=self._compiles)
        monkeypatch.setattr(build_module, "build_parts", fake_toolchain)
        monkeypatch.setattr(build_module, "known_revision", lambda memo: self.known)
        monkeypatch.setattr(build_module, "remember_revision", lambda memo, revision: None)

    @property
    def compiled(self) -> list[str]:
        """Names of the graphs whose compile was started, in order."""
        return self._compiles.read_text().split() if self._compiles.exists() else []

    def build(
        self,
        graphs: Sequence[Graph],
        *,
        listener: Listener | None = None,
        costs: Costs | None = None,
        store: LocalStore | None = None,
        programs: Programs | None = None,
        **options: Any,
    ) -> Report:
        store = store or self.store
        with memo_of(self.store.root, building=True) as memo:
            return build(
                graphs,
                store,
                memo,
                programs=programs or Programs(store.root),
                options=replace(OPTIONS, **{"worker": self.worker, **options}),
                costs=costs,
                listener=listener,
            )


def states(report: Report) -> Mapping[str, str]:
    return {outcome.graph.name: outcome.state for outcome in report.outcomes}
