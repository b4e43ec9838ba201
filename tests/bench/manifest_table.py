"""The graphs of a manifest as a Markdown table for docs/results, the longest compile first.

python -m tests.bench.manifest_table cache_manifests/smollm2-135m.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from graphcache.graph import calls_by_graph
from graphcache.manifest.file import read_manifest
from graphcache.manifest.manifest import Manifest, Recorded


def table(manifest: Manifest) -> list[str]:
    """A row for each graph, and one for their sums; `calls` are one micro-batch's, over all layers."""
    calls = calls_by_graph(manifest.uses)
    done = sorted((g for g in manifest.graphs if g.compiled), key=lambda g: -g.compiled.cost.wall_secs)  # type: ignore[union-attr]
    rows = ["| graph | wall s | CPU s | peak GB | bytes | estimate ns | calls |", "|---|---|---|---|---|---|---|"]
    rows += [_row(recorded, calls[recorded.graph.name]) for recorded in done]
    rows += [f"| {g.graph.name} | planned | | | | | {calls[g.graph.name]} |" for g in manifest.graphs if not g.compiled]
    costs = [g.compiled.cost for g in done if g.compiled]
    wall_secs, cpu_secs = sum(c.wall_secs for c in costs), sum(c.cpu_secs for c in costs)
    size_bytes = sum(g.compiled.size_bytes for g in done if g.compiled)
    rows.append(f"| **{len(done)} graphs** | {wall_secs:.0f} | {cpu_secs:.0f} | | {size_bytes:,} | | |")
    return rows


def _row(recorded: Recorded, calls: int) -> str:
    compiled = recorded.compiled
    assert compiled is not None
    cost = compiled.cost
    estimate = "" if compiled.estimate_ns is None else f"{compiled.estimate_ns:,}"
    return (
        f"| {recorded.graph.name} | {cost.wall_secs:.1f} | {cost.cpu_secs:.1f} | {cost.peak_rss_bytes / 1e9:.2f}"
        f" | {compiled.size_bytes:,} | {estimate} | {calls} |"
    )


if __name__ == "__main__":
    print("\n".join(table(read_manifest(Path(sys.argv[1])))))
