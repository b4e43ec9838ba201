"""What an AdamW graph costs at each tile size: compile time, memory, the compiler's estimate of device time.

    python -m tests.bench.adamw_tiles                          the sizes of docs/results/adamw-tiles.md
    python -m tests.bench.adamw_tiles 4194304 8388608 --form constants
    python -m tests.bench.adamw_tiles 4194304 --tactic io-bound
    python -m tests.bench.adamw_tiles 4096x4096                as a matrix, what tiles are compared with
    python -m tests.bench.adamw_tiles --quiet                  wait for an idle machine, and repeat what was disturbed

One worker compiles one size after another, each into an empty vendor cache, the compiler's summary included. Wall
seconds mean something on an idle machine only: the last column is what others used of its CPUs meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphcache.build.pool import Answer, Limits, Pool
from graphcache.graph import Graph, TensorSpec
from graphcache.process.scratch import scratch_folder
from trainer.catalogs.adamw import FUNCTION, graph

SIZES = (
    *("110592", "331776", "786432", "884736", "1835008", "2097152", "4194304", "4456448", "4849664", "5242880"),
    *("6291456", "6422528", "7340032", "8000000", "8388607", "8388608", "8486912", "8650752", "9437184", "10485760"),
    *("12582912", "16777216", "1024x4096", "4096x4096"),
)
LIMITS = Limits(secs=3600, memory_bytes=16 << 30)
# Of one CPU, by others: what counts as disturbed.
DISTURBED = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.adamw_tiles")
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--form", help="a function of tests.bench.adamw_forms")
    parser.add_argument("--tactic", default="default")
    parser.add_argument("--fusion", type=int, default=8)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    print("| size | wall s | CPU s | peak MB | runnable bytes | estimate ns | per million | others' CPUs |")
    print("|---|---|---|---|---|---|---|---|")
    with scratch_folder() as scratch:
        pool = Pool(1, fusion=options.fusion, limits=LIMITS, scratch=scratch)
        try:
            for size in options.sizes:
                made = _graph(size, options.form, options.tactic)
                print(_row(size, made, *_measured(pool, made, options.quiet)), flush=True)
        finally:
            pool.close()


def _graph(size: str, form: str | None, tactic: str) -> Graph:
    """The graph of `4194304` elements, or of a `4096x4096` matrix."""
    shape = tuple(map(int, size.split("x")))
    flat = graph(math.prod(shape), "bfloat16")
    args = tuple(TensorSpec(a.name, a.dtype, shape if a.elements > 1 else a.shape) for a in flat.args)
    function = FUNCTION if form is None else f"tests.bench.adamw_forms:{form}"
    return Graph(flat.name, "adamw", function, args, constants={}, settings={"tactic": tactic})


def _measured(pool: Pool, made: Graph, quiet: bool) -> tuple[dict[str, Any], float]:
    """The worker's two answers in one, and how many CPUs others used meanwhile."""
    while True:
        if quiet:
            _wait_for_quiet()
        busy, started = _busy_secs(), time.monotonic()
        answer = _compile(pool, made)
        wall_secs = time.monotonic() - started
        others = max(0.0, _busy_secs() - busy - answer.get("cpu_secs", 0.0)) / wall_secs
        if not quiet or others < DISTURBED:
            return answer, others


def _compile(pool: Pool, made: Graph) -> dict[str, Any]:
    pool.grow(1)
    while not pool.idle():
        pool.wait()
    (worker,) = pool.idle()
    pool.send(worker, {"op": "export", "graph": made.as_json()})
    exported = next(_events(pool))
    if "error" in exported.value:
        return dict(exported.value)
    pool.send(worker, {"op": "compile"})
    compiled = next(_events(pool))
    total = {name: exported.value["cost"][name] + compiled.value.get("cost", {}).get(name, 0) for name in _SUMMED}
    peak = compiled.value.get("cost", {}).get("peak_rss_bytes", 0)
    return {**compiled.value, **total, "peak_rss_bytes": peak}


_SUMMED = ("wall_secs", "cpu_secs")


def _events(pool: Pool) -> Iterator[Answer]:
    while True:
        for event in pool.wait():
            if not isinstance(event, Answer):
                raise RuntimeError(event.cause)
            yield event


def _row(size: str, made: Graph, answer: dict[str, Any], others: float) -> str:
    if "error" in answer:
        return f"| {size} | {answer['error']['message'].strip().splitlines()[0]} |"
    elements = made.args[0].elements
    cells = (
        f"{elements:,}" if "x" not in size else size.replace("x", " x "),
        f"{answer['wall_secs']:.1f}",
        f"{answer['cpu_secs']:.1f}",
        f"{answer['peak_rss_bytes'] / 1e6:,.0f}",
        f"{answer['sizes'][0]:,}",
        f"{answer['estimate_ns']:,}",
        f"{answer['estimate_ns'] / elements * 1e6:,.0f}",
        f"{others:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _busy_secs() -> float:
    """CPU seconds that all processes of the machine have used."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _wait_for_quiet() -> None:
    while True:
        busy = _busy_secs()
        time.sleep(2)
        if (_busy_secs() - busy) / 2 < DISTURBED:
            return


if __name__ == "__main__":
    main()
