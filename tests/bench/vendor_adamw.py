"""The vendor alone compiling AdamW graphs in the shape of the weights, one after another, from an empty cache.

    python -m tests.bench.vendor_adamw EMPTY_DIR ROWSxCOLUMNS ...

Prints one JSON line: seconds of all compile calls (import not counted, export counted), and the compiler's estimate of
each graph's device time in its own unit. No lowering for the host, no check, no store.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

from graphcache.export.program import export
from graphcache.graph import Graph
from graphcache.runtime.furiosa import set_fusion
from graphcache.toolchain.furiosa import _prepare, estimate_ns
from graphcache.vendor import layouts as vendor
from trainer.catalogs.adamw import graph


def matrix_graph(rows: int, columns: int) -> Graph:
    """The AdamW graph that sees the weight as it is, [rows, columns]."""
    flat = graph(rows * columns, "bfloat16")
    args = (dataclasses.replace(a, shape=(rows, columns)) if a.elements > 1 else a for a in flat.args)
    return dataclasses.replace(flat, name=f"adamw[{rows}x{columns}]", args=tuple(args))


def main(cache: Path, shapes: list[str]) -> None:
    set_fusion(8)
    layout = vendor.layout()
    compiler, cache_context = vendor.resolve(layout.compiler), vendor.resolve(layout.cache_context)
    secs, estimates = {}, {}
    for shape in shapes:
        rows, columns = map(int, shape.split("x"))
        started = time.perf_counter()
        with cache_context(root_dir=str(cache / shape), summary=True):
            compiler.compile(_prepare(export(matrix_graph(rows, columns)).module))
        secs[shape] = time.perf_counter() - started
        estimates[shape] = estimate_ns(cache / shape)
    print(json.dumps({"secs": secs, "estimates": estimates}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
