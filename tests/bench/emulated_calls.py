"""How long the vendor's host executor takes for each graph of a manifest: what a step takes on the emulator.

    python -m tests.bench.emulated_calls cache_manifests/smollm2-135m.json CACHE

CACHE holds the manifest's artifacts. Random arguments: the executor's time does not depend on values.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from graphcache.graph import TensorSpec, calls_by_graph
from graphcache.manifest.file import read_manifest
from graphcache.runtime.furiosa import HostExecutor
from graphcache.store.local import LocalStore
from tests.bench.measure import timed


def main(manifest_path: str, cache: str) -> None:
    """Prints seconds a call, calls a step (one micro-batch, every layer resident) and their product, longest first."""
    manifest, store = read_manifest(Path(manifest_path)), LocalStore(Path(cache))
    calls, rows = calls_by_graph(manifest.uses), []
    for recorded in manifest.graphs:
        entry = None if recorded.key is None else store.lookup(recorded.key)
        if entry is None:
            sys.exit(f"no {recorded.graph.name} there: graphcache diff --manifest {manifest_path} --cache {cache}")
        executor = HostExecutor.of(store.open(entry))
        inputs = [_random(spec) for spec in recorded.graph.args]
        secs = timed(partial(executor.execute, inputs))
        rows.append((secs * calls[recorded.graph.name], secs, recorded.graph.name))
        print(f"{secs:9.3f} s  {recorded.graph.name}", file=sys.stderr, flush=True)
    for total, secs, name in sorted(rows, reverse=True):
        print(f"{name:<40} {secs:8.3f} s  x {calls[name]:4d}  = {total:8.1f} s")
    print(f"{'a step':<40} {sum(total for total, _, _ in rows):29.1f} s")


def _random(spec: TensorSpec) -> Tensor:
    return torch.rand(spec.shape).to(getattr(torch, spec.dtype))


if __name__ == "__main__":
    main(*sys.argv[1:3])
