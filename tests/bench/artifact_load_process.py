"""One process that loads an artifact again and again, then takes the vendor's own cache hits for the same graph.

    python -m tests.bench.artifact_load_process GRAPHCACHE_DIR EMPTY_DIR

Prints one JSON line with the medians in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from graphcache.export.program import export
from graphcache.runtime.furiosa import deserialize, set_fusion
from graphcache.store.local import LocalStore
from graphcache.toolchain.furiosa import _prepare
from graphcache.vendor import layouts as vendor
from tests.bench.measure import timed

LOADS, HITS = 20, 5


def main(cache: Path, vendor_cache: Path) -> None:
    set_fusion(8)
    store = LocalStore(cache)
    entry = min(store.entries(), key=lambda e: e.graph.args[0].elements)
    layout = vendor.layout()
    compiler, cache_context = vendor.resolve(layout.compiler), vendor.resolve(layout.cache_context)

    def load() -> None:
        found = store.lookup(entry.key)
        assert found is not None
        deserialize(store.open(found).runnable)

    def vendor_hit() -> None:
        with cache_context(root_dir=str(vendor_cache)):
            compiler.compile(_prepare(export(entry.graph).module))

    vendor_hit()
    load()
    loads = statistics.median(timed(load) for _ in range(LOADS))
    hits = statistics.median(timed(vendor_hit) for _ in range(HITS))
    print(json.dumps({"load": loads, "vendor_hit": hits}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
