"""Graphs over rows in their form for the host against the same lines run eagerly by torch: seconds of a training step.

python -m tests.bench.row_forms      a table by graph
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from graphcache.graph import Graph
from graphcache.manifest.file import read_manifest
from tests.bench.manifest_table import calls_by_graph
from tests.bench.measure import Result, paired, timed
from trainer.host.forms import ROWWISE, host_form

# SmolLM2-135M, one sequence of 128 tokens a step.
MANIFEST = Path("cache_manifests/smollm2-135m.json")
THREADS = 2
ROUNDS = 15


def measure() -> list[Result]:
    """All calls of a step: medians of interleaved single calls, times their number."""
    sums: Counter[str] = Counter()
    for _, calls, ours, eager in _each():
        sums.update(ours=calls * ours, eager=calls * eager)
    detail = f"{sums['ours']:.2f} / {sums['eager']:.2f} s a step of 128 tokens, SmolLM2-135M"
    return [Result("graphs over rows, the host's form / eager torch", sums["ours"] / sums["eager"], 0.5, True, detail)]


def _each() -> Iterator[tuple[Graph, int, float, float]]:
    """Graph, calls a step, seconds a call in its form and eagerly."""
    torch.set_num_threads(THREADS)
    manifest = read_manifest(MANIFEST)
    calls = calls_by_graph(manifest)
    for graph in (recorded.graph for recorded in manifest.graphs):
        if graph.function in ROWWISE:
            args = [torch.randn(a.shape).to(getattr(torch, a.dtype)) for a in graph.args]
            eager = partial(graph.load_function(), *args, **graph.constants)
            form = partial(host_form(graph), *args)
            with torch.no_grad():
                yield graph, calls[graph.name], *paired(partial(timed, form), partial(timed, eager), ROUNDS)


def main() -> None:
    print("| graph | calls a step | ms a call, the host's form | eager torch |\n|---|---|---|---|")
    for graph, calls, ours, eager in _each():
        print(f"| `{graph.name}` | {calls} | {ours * 1e3:.2f} | {eager * 1e3:.2f} |")


if __name__ == "__main__":
    main()
