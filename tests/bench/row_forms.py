"""Graphs over rows in their form for the host against the same lines run eagerly by torch: seconds of a training step.

python -m tests.bench.row_forms      a table by graph
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from graphcache.graph import Graph, calls_by_graph
from graphcache.manifest.file import read_manifest
from tests.bench.measure import Result, cpu_name, paired, timed
from trainer.device.cpu import CpuBackend
from trainer.host.forms import ROWWISE

# SmolLM2-135M, one sequence of 128 tokens a step.
MANIFEST = Path("cache_manifests/smollm2-135m.json")
THREADS = 2
# Where torch multiplies bfloat16 numbers one by one, the product is nearly all of what eager torch takes for it.
WITH_A_PRODUCT = frozenset({"trainer.graphs.head:chunk_forward"})
ROUNDS = 15


def measure() -> list[Result]:
    """All calls of a step: medians of interleaved single calls, times their number."""
    found = [(graph.function, calls * ours, calls * eager) for graph, calls, ours, eager in _each()]
    name = "graphs over rows, the host's form / eager torch"
    rows = [one for one in found if one[0] not in WITH_A_PRODUCT]
    return [_result(name, found), _result("  those without a product", rows)]


def _result(name: str, found: Sequence[tuple[str, float, float]]) -> Result:
    ours, eager = sum(one[1] for one in found), sum(one[2] for one in found)
    detail = f"{ours:.2f} / {eager:.2f} s a step of 128 tokens, SmolLM2-135M; {cpu_name()}"
    return Result(name, ours / eager, 0.4, True, detail)


def _each() -> Iterator[tuple[Graph, int, float, float]]:
    """Graph, calls a step, seconds a call in its form and eagerly."""
    torch.set_num_threads(THREADS)
    manifest = read_manifest(MANIFEST)
    calls = calls_by_graph(manifest.uses)
    for graph in (recorded.graph for recorded in manifest.graphs):
        if graph.function in ROWWISE:
            args = [torch.randn(a.shape).to(getattr(torch, a.dtype)) for a in graph.args]
            eager = partial(graph.load_function(), *args, **graph.constants)
            form = partial(CpuBackend().load(graph).program, *args)
            with torch.no_grad():
                yield graph, calls[graph.name], *paired(partial(timed, form), partial(timed, eager), ROUNDS)


def main() -> None:
    print("| graph | calls a step | ms a call, the host's form | eager torch |\n|---|---|---|---|")
    for graph, calls, ours, eager in _each():
        print(f"| `{graph.name}` | {calls} | {ours * 1e3:.2f} | {eager * 1e3:.2f} |")


if __name__ == "__main__":
    main()
