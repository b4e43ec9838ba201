"""Builds with the installed compiler that are interrupted, and sources that turn out to be one program."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphcache.store.local import LocalStore
from tests.build.test_pool import running
from tests.compiler.vendor import INSTALLED, OLDER, Vendor, model, vendor

pytestmark = pytest.mark.compiler

TWO_SOURCES = """
import json, sys
from pathlib import Path
from graphcache.build.build import BuildOptions, build
from graphcache.local.memo import memo_of
from graphcache.store.programs import Programs
from graphcache.store.local import LocalStore
from tests.support.programs import graph_of

def states(cache, *functions):
    store = LocalStore(cache)
    graphs = [graph_of(function, shape=(64,)) for function in functions]
    with memo_of(store.root) as memo:
        report = build(graphs, store, memo, programs=Programs(store.root), options=BuildOptions(jobs=1))
    return [[o.state, o.entry.artifact_digest if o.entry else o.trouble.cause] for o in report.outcomes]

root = Path(sys.argv[1])
print(json.dumps({
    "first": states(root / "a", "scaled_sum"),
    "second": states(root / "a", "renamed"),
    "apart": states(root / "b", "renamed"),
    "other": states(root / "a", "other_constant"),
    "view": states(root / "a", "returns_a_view"),
}))
"""


@pytest.fixture
def installed(tmp_path: Path) -> Vendor:
    return vendor(INSTALLED, tmp_path)


@pytest.mark.parametrize("release", [INSTALLED, OLDER])
def test_sources_and_their_artifacts(release: str, tmp_path: Path) -> None:
    facts = vendor(release, tmp_path).python(TWO_SOURCES, str(tmp_path))
    ((state, digest),) = facts["first"]
    assert state == "compiled"
    assert facts["second"] == [["same program", digest]]
    assert facts["apart"] == [["compiled", digest]], "lines and names do not reach the bytes"
    ((state, other),) = facts["other"]
    assert state == "compiled"
    assert other != digest
    if release == INSTALLED:
        ((state, cause),) = facts["view"]
        assert state == "failed"
        assert "1 of 2 results" in cause


def test_a_build_killed_half_way_is_resumed(installed: Vendor) -> None:
    checkpoint = model(installed.home / "model", (64, 64), (32, 32), (16, 16))
    command = ("build", "--shapes-from", str(checkpoint), "--only", "adamw", "--jobs", "1")
    store = LocalStore(installed.home / "cache")
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command], env=installed.environment, stdout=subprocess.DEVNULL
    )
    while not list(store.entries()):
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.02)
    workers = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(map(running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert workers
    assert not any(map(running, workers))
    kept = {entry.graph.name for entry in store.entries()}
    report = installed.cli(*command)
    states = {g["graph"]: g["state"] for g in report["graphs"]}
    assert set(states) == {"adamw[4096]", "adamw[1024]", "adamw[256]"}
    assert {name for name in states if states[name] == "ready"} == kept
    assert installed.cli("verify")["sound"]


def children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                status = (place / "status").read_text()
            except OSError:
                continue
            if f"\nPPid:\t{pid}\n" in status:
                found.append(int(place.name))
    return found
