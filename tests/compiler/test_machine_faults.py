"""The real compiler while the machine fails under it: the build goes on, and nothing is remembered for good."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compiler.vendor import INSTALLED, vendor

pytestmark = pytest.mark.compiler

BUILD = """
import json, os, shutil, sys, tempfile
from pathlib import Path
from graphcache.build.build import BuildOptions, build
from graphcache.build.report import Silent
from graphcache.local.memo import memo_of
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from tests.support.programs import graph_of

store, gcc = LocalStore(Path(sys.argv[1])), Path(sys.argv[2])
graphs = [graph_of(name, shape=(8, 8)) for name in ("scaled_sum", "other_operator", "other_constant")]

class Fault(Silent):
    def __init__(self, do):
        self.do = do

    def started(self, graph, expected):
        self.do(graph.name)
        self.do = lambda name: None

def clean(name):
    for folder in Path(tempfile.gettempdir()).glob("graphcache-build-*"):
        shutil.rmtree(folder, ignore_errors=True)  # a worker writes in there meanwhile, as under a real cleaner

def run(do, graphs):
    with memo_of(store.root, building=True) as memo:
        report = build(
            graphs, store, memo, programs=Programs(store.root), options=BuildOptions(jobs=1), listener=Fault(do)
        )
    return [outcome.state for outcome in report.outcomes]

found = {"without gcc": run(lambda name: gcc.rename(gcc.parent / "away"), graphs[:1])}
found["records"] = [[f.cause, f.retryable] for f in store.failures()]
(gcc.parent / "away").rename(gcc)
found["cleaned"] = run(clean, graphs)
print(json.dumps({**found, "left": len(store.failures())}))
"""


def test_a_cleaner_and_a_cross_gcc_that_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = tmp_path / "bin" / "aarch64-linux-gnu-gcc"
    gcc.parent.mkdir()
    gcc.write_text(f'#!/bin/sh\nexec {shutil.which("aarch64-linux-gnu-gcc")} "$@"\n')
    gcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(gcc.parent))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    found = vendor(INSTALLED, tmp_path).python(BUILD, str(tmp_path / "cache"), str(gcc))
    assert found["without gcc"] == ["failed"]
    ((cause, retryable),) = found["records"]
    assert "(os error 2)" in cause
    assert retryable
    assert found["cleaned"] == ["compiled"] * 3
    assert found["left"] == 0
