"""A change in the head's source, on this repository's own manifest of a whole training step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANIFEST = "cache_manifests/smollm2-135m.json"
BEFORE, AFTER = "(probabilities * coefficient[:, None])", "(coefficient[:, None] * probabilities * 2.0)"


def test_a_change_of_the_head_makes_its_graph_stale_and_no_other(tmp_path: Path) -> None:
    for name in ("graphcache", "trainer", "cli", "cache_manifests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    head = tmp_path / "trainer" / "graphs" / "head.py"
    source = head.read_text()
    assert source.count(BEFORE) == 1
    head.write_text(source.replace(BEFORE, AFTER))

    command = [sys.executable, "-m", "cli.main", "diff", "--json", "--manifest", MANIFEST, "--cache", "empty"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    assert run.returncode == 1, run.stderr
    (manifest,) = json.loads(run.stdout)["manifests"]
    graphs = {graph["graph"]: graph for graph in manifest["graphs"]}
    stale = {name: graph for name, graph in graphs.items() if graph["state"] == "stale"}
    assert {name.partition("[")[0] for name in stale} == {"head.chunk_softmax_backward"}
    (changed,) = stale.values()
    assert changed["reasons"] == ["source: trainer/graphs/head.py::chunk_softmax_backward"]
    assert changed["expected_secs"] > 0
    # The rest only lacks an artifact here.
    assert {graph["state"] for name, graph in graphs.items() if name not in stale} == {"missing from the store"}
