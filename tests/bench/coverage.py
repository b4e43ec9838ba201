"""Which sizes of which models compile, and are proven, as Markdown for docs/results/coverage.md.

python -m tests.bench.coverage --cache DIR --tokens 32,128,512 --micro-batch 1,4 --limit 300 MODEL ...

One build after another into one cache, so that what is interrupted goes on where it was, and a size takes over what
another has compiled. A line for each size as it ends; then the graphs that have no way, with the compiler's words.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcache.graph import calls_by_graph
from graphcache.plan import cause_line

COLUMNS = ("model", "tokens", "micro-batch", "graphs", "as listed", "otherwise", "none", "proven", "disproven")
HEADER = (*COLUMNS, "device ms", "compile s")


def build(model: Path, tokens: int, micro_batch: int, options: argparse.Namespace) -> Mapping[str, Any]:
    """What `graphcache build --json` says; also where graphs failed."""
    words = [sys.executable, "-m", "cli.main", "build", "--shapes-from", str(model), "--only", options.only, "--json"]
    words += ["--sequence", str(tokens), "--micro-batch", str(micro_batch), "--timeout", str(options.limit)]
    words += ["--cache", str(options.cache), "--prove", options.prove, "--jobs", str(options.jobs)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(words)} ended with exit code {done.returncode}")
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def calls(model: Path, tokens: int, micro_batch: int, options: argparse.Namespace) -> Mapping[str, int]:
    """Calls of each graph in a step with one micro-batch."""
    from graphcache import catalog
    from graphcache.catalog import CatalogOptions
    from graphcache.manifest import model_source

    source = model_source.load(model)
    chosen = CatalogOptions(sequence=tokens, micro_batch=micro_batch)
    return calls_by_graph(catalog.list_graphs(options.only.split(","), source.table, source.config, chosen).uses)


def row(model: str, tokens: int, micro_batch: int, graphs: Sequence[Mapping[str, Any]], uses: Mapping[str, int]) -> str:
    there = [graph for graph in graphs if graph["key"]]
    proofs = [(graph["proof"] or {}).get("state") for graph in graphs]
    device_ns = sum(
        (graph["estimate_ns"] or 0) * graph["calls"] * uses.get(graph["graph"], 0)
        for graph in there
        if graph["catalog"] in ("layer", "head")
    )
    cells = [
        *(model, tokens, micro_batch, len(graphs)),
        sum(graph["way"] == graph["graph"] for graph in there),
        sum(graph["way"] != graph["graph"] for graph in there),
        len(graphs) - len(there),
        proofs.count("proven"),
        proofs.count("disproven"),
        f"{device_ns / 1e6:.4g}",
        round(sum(graph["wall_secs"] for graph in there)),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.coverage")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tokens", type=numbers, default=[128, 256, 512, 1024])
    parser.add_argument("--micro-batch", type=numbers, default=[1])
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of one compile")
    parser.add_argument("--only", default="layer,head,adamw,tiles")
    parser.add_argument("--prove", choices=("all", "auto", "none"), default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(argv)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    holes = []
    for model in options.models:
        for tokens in options.tokens:
            for micro_batch in options.micro_batch:
                found = build(model, tokens, micro_batch, options)
                graphs, name = found["graphs"], found["model"]
                uses = calls(model, tokens, micro_batch, options)
                print(row(name, tokens, micro_batch, graphs, uses), flush=True)
                holes += [(name, graph) for graph in graphs if not graph["key"]]
    for name, graph in holes:
        cause = cause_line(graph["trouble"]["cause"]) if graph["trouble"] else graph["why"]
        print(f"\n- {name}: {graph['graph']}: {cause}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
