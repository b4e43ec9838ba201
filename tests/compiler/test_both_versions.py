"""One interface over both versions of the vendor: compile, check, load, run on the host, compile again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.vendor import INSTALLED, OLDER, Vendor, model, vendor

pytestmark = pytest.mark.compiler

RUN = """
import json, sys
import torch
from graphcache.proof.inputs import example
from graphcache.proof.bounds import bounded
from graphcache.runtime import furiosa
from graphcache.store.local import LocalStore

store = LocalStore(sys.argv[1])
(entry,) = [e for e in store.entries() if e.graph.name == sys.argv[2]]
artifact = store.open(entry)
executor = furiosa.HostExecutor.of(artifact)
inputs = example(entry.graph)
before = [t.clone() for t in inputs]
first, second = executor.execute(inputs), executor.execute(inputs)
wanted = bounded(entry.graph, inputs)
args, outputs = furiosa.signature(furiosa.deserialize(artifact.runnable))
shape = lambda specs: [[s.dtype, list(s.shape)] for s in specs]
try:
    furiosa.HostExecutor(artifact.dfg, fusion=4)
    other_fusion = "accepted"
except furiosa.FusionError:
    other_fusion = "refused"
print(json.dumps({
    "inputs_kept": all(torch.equal(a, b) for a, b in zip(before, inputs)),
    "same_twice": all(torch.equal(a, b) for a, b in zip(first, second)),
    "own_memory": not {t.data_ptr() for t in first} & {t.data_ptr() for t in (*second, *inputs)},
    "largest_share": max(((a.double() - b.value).abs() / b.bound).max().item() for a, b in zip(first, wanted)),
    "args": shape(args) == shape(artifact.args) == shape(entry.graph.args),
    "outputs": shape(outputs) == shape(artifact.outputs),
    "device": furiosa.device_type(),
    "flag_is_shared_by_threads": furiosa.flag_is_shared_by_threads(),
    "flag_after": furiosa.memory_is_shared(),
    "other_fusion": other_fusion,
}))
"""

CHECK = """
import json, sys, tempfile
from dataclasses import replace
from pathlib import Path
from graphcache.build.check import CheckError, HalfWrittenError, check
from graphcache.export.program import export
from graphcache.toolchain.furiosa import FuriosaCompiler
from trainer.catalogs.adamw import graph

compiler = FuriosaCompiler(8, Path(tempfile.mkdtemp()))
small, large = graph(1024, "bfloat16"), graph(2048, "bfloat16")
compiled = {g.name: compiler.compile(export(g), {}) for g in (small, large)}
outputs = export(small).outputs
good = compiled[small.name]

def verdict(found):
    try:
        check(small, outputs, found, fusion=8)
    except HalfWrittenError:
        return "half-written"
    except CheckError as error:
        return str(error)
    return "passed"

half = len(good.runnable) // 2
print(json.dumps({
    "good": verdict(good),
    "half a runnable": verdict(replace(good, runnable=good.runnable[:half])),
    "half a lowered graph": verdict(replace(good, dfg=good.dfg[: len(good.dfg) // 2])),
    "zeros": verdict(replace(good, runnable=bytes(len(good.runnable)))),
    "nothing": verdict(replace(good, runnable=b"")),
    "another graph": verdict(compiled[large.name]),
    "tactics": [compiler.compile(export(small), {"tactic": t}).estimate_ns for t in ("compute-bound", "io-bound")],
}))
"""


@pytest.fixture(scope="module", params=[INSTALLED, OLDER])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Vendor, Any]:
    """A vendor, and the report of a build with it of two graphs into its empty cache."""
    found = vendor(request.param, tmp_path_factory.mktemp(request.param))
    checkpoint = model(found.home / "model", (64, 64), (32, 32))
    return found, found.cli("build", "--shapes-from", str(checkpoint), "--only", "adamw", "--jobs", "1")


def test_a_build_compiles_every_graph(built: tuple[Vendor, Any]) -> None:
    found, report = built
    assert report["toolchain"]["furiosa-torch"].startswith(found.release)
    assert [(g["graph"], g["state"]) for g in report["graphs"]] == [
        ("adamw[4096]", "compiled"),
        ("adamw[1024]", "compiled"),
    ]
    for graph in report["graphs"]:
        assert graph["size_bytes"] > 100_000
        assert graph["estimate_ns"] > 1000
        assert graph["peak_rss_bytes"] < 2 * 10**9


def test_the_next_build_compiles_nothing(built: tuple[Vendor, Any]) -> None:
    found, _ = built
    again = found.cli("build", "--shapes-from", str(found.home / "model"), "--only", "adamw")
    assert {g["state"] for g in again["graphs"]} == {"ready"}


def test_the_vendors_own_cache_is_left_alone(built: tuple[Vendor, Any]) -> None:
    found, _ = built
    assert not (found.home / "xdg" / "furiosa").exists()
    assert not (found.home / ".cache").exists()


def test_an_artifact_loads_and_computes_what_torch_does(built: tuple[Vendor, Any]) -> None:
    found, _ = built
    facts = found.python(RUN, str(found.home / "cache"), "adamw[4096]")
    assert facts.pop("largest_share") <= 1
    assert facts == {
        "inputs_kept": True,
        "same_twice": True,
        "own_memory": True,
        "args": True,
        "outputs": True,
        "device": {INSTALLED: "furiosa", OLDER: "rngd"}[found.release],
        "flag_is_shared_by_threads": found.release == OLDER,
        "flag_after": False,
        "other_fusion": "refused",
    }


def test_compiling_again_gives_the_same_bytes(built: tuple[Vendor, Any]) -> None:
    """In another process, in another order, and in a worker that compiled another graph before."""
    found, report = built
    digests = {g["graph"]: g["artifact"] for g in report["graphs"]}
    checkpoint = model(found.home / "swapped", (16, 16), (32, 32), (64, 64))
    other = ("--cache", str(found.home / "other-cache"), "--jobs", "1")
    again = found.cli("build", "--shapes-from", str(checkpoint), "--only", "adamw", *other, PYTHONHASHSEED="7")
    assert {g["graph"]: g["artifact"] for g in again["graphs"] if g["graph"] in digests} == digests


def test_a_bad_result_does_not_pass_the_check(built: tuple[Vendor, Any]) -> None:
    found, _ = built
    facts = found.python(CHECK)
    assert facts.pop("good") == "passed"
    assert all(estimate > 1000 for estimate in facts.pop("tactics"))
    assert "has the arguments" in facts.pop("another graph")
    assert facts == dict.fromkeys(("half a runnable", "half a lowered graph", "zeros", "nothing"), "half-written")


def test_what_is_built_is_proven_and_rebuilt(built: tuple[Vendor, Any]) -> None:
    found, report = built
    key = report["graphs"][0]["key"]
    facts = found.cli("verify", key, "--rebuild")
    assert [check["state"] for check in facts["rebuild"]] == ["passed"]
    (proven,) = found.cli("prove", key)["graphs"]
    assert proven["state"] == "proven"
    assert proven["proof"]["releases"]["furiosa-torch"].startswith(found.release)
    assert max(result["share"] for result in proven["proof"]["results"]) <= 1
