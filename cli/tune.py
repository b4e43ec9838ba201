"""`graphcache tune`: compile more ways of a model's graphs, and keep what runs quickest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cli.build import MOST_GB, Request, planned, read_request, worker_options, write_request
from cli.cache import warn_of_faults
from cli.options import (
    MOST_SECS,
    PATH,
    Duration,
    Positive,
    cache_option,
    catalog_options,
    cli_command,
    json_option,
    only_option,
    timeout_option,
)
from cli.progress import build_progress
from cli.render import emit_facts, emit_json, emit_table
from graphcache.build.build import DEFAULT_TIMEOUT_SECS
from graphcache.build.report import Outcome
from graphcache.build.tune import Tuned, tune
from graphcache.graph import Graph, calls_by_graph
from graphcache.local.memo import memo_of
from graphcache.location import cache_dir
from graphcache.process.shown import count_text, printable, secs_text
from graphcache.store.local import LocalStore
from graphcache.toolchain.base import build_parts

FAILED = 1


@cli_command(
    "tune",
    examples=(
        "graphcache tune --shapes-from SmolLM2-135M --sequence 128 --budget 2h",
        "graphcache tune --shapes-from Llama-3.1-8B --only layer --budget 8h --manifest llama-3.1-8b.json",
        "graphcache tune --shapes-from cache_manifests/smollm2-135m.json --over 2 --json",
    ),
)
@click.option("--shapes-from", "source", metavar="MODEL", type=PATH, required=True, help="A checkpoint, or a manifest.")
@only_option
@click.option("--fusion", type=int, help="PEs that are used as one device.  [default: 8]")
@click.option("--jobs", type=click.IntRange(min=1), help="Compiles at once. Default: as CPUs and memory allow.")
@click.option(
    "--budget",
    "budget_secs",
    type=Duration(),
    metavar="TIME",
    help="Stop after 90s, 30m or 2h of trying and proving. Default: try all.",
)
@click.option(
    "--over",
    type=Positive(most=1e6),
    default=4.0,
    show_default=True,
    metavar="TIMES",
    help="Give up a compile that takes so many times what the graph's first way took, and a minute at least.",
)
@timeout_option("A first way that takes longer fails.", most_secs=MOST_SECS, default_secs=DEFAULT_TIMEOUT_SECS)
@click.option(
    "--memory", "memory_gb", type=Positive(most=MOST_GB), metavar="GB", help="A compile that holds more fails."
)
@catalog_options
@click.option("--manifest", type=PATH, metavar="FILE", help="Write the graphs with the ways that were chosen to FILE.")
@cache_option
@json_option
def command(
    source: Path,
    only: tuple[str, ...],
    budget_secs: float | None,
    over: float,
    manifest: Path | None,
    cache: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compile more ways of each graph, and prove the quickest.

    First it builds what a build would. Then, the graphs with the most device time first, it compiles their other ways
    (row tiles, other settings; docs/ways.md), and proves those that are the quickest by the compiler's estimate. A
    trainer takes the quickest proven way that its cache has, and so does `build --reuse`. Interrupted in any way, it
    goes on where it was. Exit code 1: a graph has no way.
    """
    request = read_request(source, only, manifest, LocalStore(cache_dir(cache)), options)
    with memo_of(request.store.root, building=True) as memo, build_progress(as_json) as progress:
        found = tune(
            request.listing.graphs,
            calls_by_graph(request.listing.uses),
            request.store,
            memo,
            programs=request.programs,
            options=replace(worker_options({**options, "fusion": request.fusion}), prove=True),
            over=over,
            budget_secs=budget_secs,
            costs=request.costs,
            listener=Quiet() if as_json else Lines(),
            first=progress,
        )
        toolchain = build_parts(request.fusion, memo)
    items = planned(request, toolchain, "best")
    warn_of_faults(request.store.faults)
    whole = all(item.entry is not None for item in items)
    written = manifest is not None and whole
    if manifest is not None and written:
        write_request(manifest, request, toolchain, ((item, item.entry) for item in items))
    if as_json:
        emit_json(_as_json(request, found, str(manifest) if written else None))
    else:
        show(found)
    return 0 if whole else FAILED


def _as_json(request: Request, found: Sequence[Tuned], manifest: str | None) -> Mapping[str, Any]:
    before, after = totals_ns(found)
    return {
        "cache": str(request.store.root),
        "model": request.model.name,
        "manifest": manifest,
        "graphs": [each.as_json() for each in found],
        "estimate_before_ns": before,
        "estimate_ns": after,
    }


def totals_ns(found: Sequence[Tuned]) -> tuple[float, float]:
    """Device time of all calls of a step with one micro-batch, before and now, of graphs that have both estimates."""
    known = [each for each in found if math.isfinite(each.share)]
    before = sum(each.before.estimate_ns * each.weight for each in known)
    return before, sum(each.after.estimate_ns * each.weight for each in known)


class Quiet:
    """A listener that says nothing."""

    def trying(self, graph: Graph, ways: Sequence[Graph], limit_secs: float) -> None:
        pass

    def tried(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def proving(self, graphs: Sequence[str]) -> None:
        pass


class Lines(Quiet):
    """A line for what is tried, what came of it, and what is proven."""

    def trying(self, graph: Graph, ways: Sequence[Graph], limit_secs: float) -> None:
        names = ", ".join(way.name for way in ways)
        self._say(f"try     {graph.name}: {names}  (at most {secs_text(limit_secs)} each)")

    def tried(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.entry is None:
                cause = outcome.trouble.cause.strip().splitlines()[0] if outcome.trouble else ""
                self._say(f"done    {outcome.graph.name}  {cause}")
            else:
                took, estimate_ns = secs_text(outcome.entry.cost.wall_secs), outcome.entry.facts.estimate_ns
                self._say(f"done    {outcome.graph.name}  compiled in {took}, {_us(estimate_ns)} a call")

    def proving(self, graphs: Sequence[str]) -> None:
        self._say(f"prove   {len(graphs)}: {', '.join(graphs)}")

    @staticmethod
    def _say(line: str) -> None:
        print(printable(line), flush=True)


def show(found: Sequence[Tuned]) -> None:
    """One line a graph, those with the most device time first; then all calls of a step."""
    emit_table(
        ("graph", "calls a step", "before", "now", "share", "way", "refused", "left"),
        [
            (
                each.graph.name,
                count_text(each.weight),
                _us(each.before.estimate_ns),
                _us(each.after.estimate_ns),
                f"{each.share:.2f}" if math.isfinite(each.share) else "",
                _way_text(each),
                count_text(len(each.refused)) if each.refused else "",
                count_text(each.left) if each.left else "",
            )
            for each in sorted(found, key=lambda each: -_weighed(each))
        ],
    )
    before, after = totals_ns(found)
    unproven = sum(not each.after.is_proven for each in found)
    print()
    emit_facts(
        [
            ("device time", f"{before / 1e6:.4g} ms before, {after / 1e6:.4g} ms now"),
            ("share", f"{after / before:.3f}" if before else "unknown"),
            *([("unproven", f"{count_text(unproven)}: graphcache prove")] if unproven else []),
        ]
    )


def _weighed(each: Tuned) -> float:
    return each.before.estimate_ns * each.weight if math.isfinite(each.before.estimate_ns) else 0.0


def _way_text(each: Tuned) -> str:
    if each.after.entry is None:
        return "none"
    proof = "" if each.after.is_proven else " (unproven)"
    return ("as it is" if each.after.way is None else str(each.after.way)) + proof


def _us(estimate_ns: float | None) -> str:
    return "" if estimate_ns is None or not math.isfinite(estimate_ns) else f"{estimate_ns / 1e3:,.4g} us"
