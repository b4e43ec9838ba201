"""All AdamW graphs of Llama-3.1-8B from empty caches, against the vendor compiling the four matrix-shaped ones."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from graphcache.catalog import CatalogOptions
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from tests.bench.measure import Result, python, run_command
from tests.support.sparse import write_checkpoint
from trainer.catalogs.adamw import tiles

# The 2-D weights of a layer of Llama-3.1-8B: how many there are of each shape.
WEIGHTS = {"1024x4096": 2, "4096x4096": 2, "14336x4096": 2, "4096x14336": 1}


def measure() -> list[Result]:
    """One run of each: a whole `graphcache build` process against the vendor's export and compile calls alone."""
    with tempfile.TemporaryDirectory() as work:
        model, cache = Path(work, "model"), Path(work, "cache")
        write_checkpoint("llama-3.1-8b", model)
        build = ("build", "--shapes-from", str(model), "--only", "adamw", "--fusion", "8", "--cache", str(cache))
        ours_secs = run_command(python("-m", "cli.main", *build)).wall_secs
        entries = list(LocalStore(cache).entries())
        vendor = _vendor(Path(work, "vendor"))
    theirs_secs = sum(vendor["secs"].values())
    by_size = {entry.graph.args[0].elements: entry for entry in entries}
    cuts = {shape: tiles(_elements(shape), CatalogOptions().tile_elements) for shape in WEIGHTS}
    ours_ns = sum(count * sum(_estimate(by_size[n]) for n in cuts[shape]) for shape, count in WEIGHTS.items())
    theirs_ns = sum(count * vendor["estimates"][shape] for shape, count in WEIGHTS.items())
    calls = {shape: len(cut) for shape, cut in cuts.items()}
    peak_gb = max(entry.cost.peak_rss_bytes for entry in entries) / 1e9
    detail = f"{ours_secs:.1f} s against {theirs_secs:.1f} s ({', '.join(sorted(e.graph.name for e in entries))})"
    return [
        Result("build of all AdamW graphs / the vendor's four", ours_secs / theirs_secs, 1 / 15, True, detail),
        Result("calls a weight, at most", max(calls.values()), 8, True, str(calls)),
        Result("estimated device time of a layer / matrix graphs", ours_ns / theirs_ns, 1.1, True, f"{ours_ns} ns"),
        Result("peak memory of a worker, GB", peak_gb, 2.0, True, ""),
    ]


def _elements(shape: str) -> int:
    rows, columns = map(int, shape.split("x"))
    return rows * columns


def _estimate(entry: Entry) -> int:
    assert entry.facts.estimate_ns is not None, f"{entry.graph.name} has no estimate"
    return entry.facts.estimate_ns


def _vendor(cache: Path) -> dict[str, Any]:
    argv = python("-m", "tests.bench.vendor_adamw", str(cache), *WEIGHTS)
    run = subprocess.run(argv, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer
