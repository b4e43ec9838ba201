"""`graphcache diff`: which graphs of the committed manifests are stale, why, and what building them costs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cli.cache import KEY_DIGITS, toolchain_text, warn_of_faults, warn_of_troubles
from cli.options import cache_option, cli_command, json_option, manifests_option, remote_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache import catalog
from graphcache.export.client import export_programs, installed_torch
from graphcache.local.memo import memo_of
from graphcache.location import cache_dir
from graphcache.manifest.baseline import Baseline, find_manifests, of_revision, of_work_tree
from graphcache.manifest.diff import Comparison, Now, compare, listed
from graphcache.manifest.manifest import known_programs
from graphcache.process.own_command import build_command, own_command
from graphcache.process.shown import count_text, secs_text
from graphcache.process.streams import report_warning
from graphcache.remote.opening import open_store
from graphcache.remote.url import remote_urls
from graphcache.source.checkout import check_sources
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.toolchain.visible import VisibleParts, visible_parts

# What stays as it is; what is compiled anew has no proof either.
PROVABLE = ("unchanged", "same program")


@dataclass(frozen=True)
class Compared:
    """A manifest with its comparisons.

    command:        does what is to do about all but other bytes
    verify_command: says whether a compiler of ours gives those; empty where there are none
    """

    baseline: Baseline
    comparisons: tuple[Comparison, ...]
    command: str
    verify_command: str

    @property
    def to_do(self) -> bool:
        return any(comparison.to_do for comparison in self.comparisons)

    @property
    def to_build(self) -> bool:
        return any(comparison.to_do and comparison.kind != "other bytes" for comparison in self.comparisons)

    @property
    def to_compile(self) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if comparison.to_compile]

    @property
    def expected_secs(self) -> float:
        """Expected time of all compiles whose cost is known, run one after another."""
        return sum(c.expected.secs for c in self.to_compile if c.expected)

    @property
    def unknown_costs(self) -> int:
        return sum(c.expected is None for c in self.to_compile)


@cli_command(
    "diff",
    examples=(
        "graphcache diff",
        "graphcache diff --manifest cache_manifests/llama-3.1-8b-adamw.json",
        "graphcache diff --since origin/main --json",
    ),
)
@manifests_option("A manifest to compare; may be given several times. Default: all in the checkout's cache_manifests/.")
@click.option("--since", metavar="REV", help="Compare with manifests and sources as they were at this git revision.")
@cache_option
@remote_option
@json_option
def command(
    manifests: tuple[Path, ...], since: str | None, cache: str | None, remotes: tuple[str, ...], as_json: bool
) -> int:
    """Say which graphs are stale, why, and what building them costs.

    A graph is: unchanged; same program (its source changed, what it exports to did not); stale, with source, signature
    or toolchain as the reason; new; removed; missing from the store; other bytes (the store's artifact is not the one
    that the manifest names); or planned, that is listed in the manifest without a compile on purpose.

    Exit code 0: nothing to do (unchanged, same program, planned). 1: something to do. 2: an error.
    """
    urls = remote_urls(remotes)
    store = open_store(cache_dir(cache), urls)
    current = of_work_tree(find_manifests(manifests, Path.cwd()))
    check_sources(_functions(current), [Path.cwd(), *(baseline.path.absolute().parent for baseline in current)])
    with memo_of(store.root) as memo:
        toolchain = visible_parts(memo)
    compared, trouble = _compared(current, since, store, toolchain, cache, remotes=bool(urls))
    if trouble:
        report_warning("programs", f"what was exported could not be kept: {trouble}")
    warn_of_faults(store.faults)
    warn_of_troubles(store)
    if as_json:
        emit_json(_as_json(compared, store, toolchain, since))
    else:
        _show(compared, toolchain)
    return int(any(one.to_do for one in compared))


def _functions(baselines: Iterable[Baseline]) -> set[str]:
    """Functions of the graphs that are compared, and of the catalogs that list them now."""
    manifests = [baseline.manifest for baseline in baselines]
    graphs = {recorded.made.function for manifest in manifests for recorded in manifest.graphs}
    return graphs.union(*(catalog.functions(manifest.catalogs) for manifest in manifests))


def _compared(
    current: Sequence[Baseline],
    since: str | None,
    store: LocalStore,
    toolchain: VisibleParts,
    cache: str | None,
    *,
    remotes: bool,
) -> tuple[list[Compared], str]:
    """Every manifest with its comparisons; and why programs that were exported could not be kept, if they could not."""
    # A folder that is no store, named by mistake perhaps, is left as it is.
    # With a remote it is meant to be filled.
    root = store.root if store.layout.is_store() or remotes else None
    programs = Programs(root, known_programs(baseline.manifest for baseline in current), guard=store.guard)
    baselines = current if since is None else of_revision(current, since, programs, Path.cwd())
    now = Now(
        sources=SourceHashes(WorkTree()),
        programs=programs,
        toolchain=toolchain.parts,
        store=store,
        torch=installed_torch(),
        export=export_programs,
    )
    results = compare([(baseline.recorded, listed(baseline.manifest)) for baseline in baselines], now)
    compared = [
        Compared(baseline, comparisons, _build_command(baseline, cache), verify_command(baseline, comparisons, cache))
        for baseline, comparisons in zip(baselines, results, strict=True)
    ]
    return compared, programs.trouble


def _build_command(baseline: Baseline, cache: str | None) -> str:
    """The command that compiles what a manifest lacks, and writes the manifest again. Needs no checkpoint."""
    manifest, path = baseline.manifest, str(baseline.path)
    fusion = manifest.toolchain.get("fusion")
    return build_command(path, manifest.catalogs, options=manifest.options, fusion=fusion, cache=cache, manifest=path)


def verify_command(baseline: Baseline, comparisons: Iterable[Comparison], cache: str | None) -> str:
    """The command that compiles again what has other bytes than the manifest names, and compares."""
    other = [c.item.key for c in comparisons if c.kind == "other bytes" and c.item and c.item.key]
    if not other:
        return ""
    words = [*own_command(), "verify", *(key.digest[:KEY_DIGITS] for key in other), "--rebuild"]
    words += ["--cache", cache] if cache else []
    return shlex.join([*words, "--manifest", str(baseline.path)])


def _show(compared: Sequence[Compared], toolchain: VisibleParts) -> None:
    for one in compared:
        print(f"{one.baseline.path}  ({toolchain_text(one.baseline.recorded.toolchain)})")
        emit_table(
            ("state", "graph", "why", "compile"),
            [
                (c.kind, c.name, "; ".join([*c.reasons, *([c.note] if c.note else [])]), _expected_text(c))
                for c in one.comparisons
            ],
        )
        print()
    for name, reason in toolchain.missing.items():
        print(f"not compared: {name} ({reason})")
    counts = Counter(c.kind for one in compared for c in one.comparisons)
    unproven = sum(c.kind in PROVABLE and c.proof != "proven" for one in compared for c in one.comparisons)
    rows = [(kind, count_text(counts[kind])) for kind in sorted(counts)]
    emit_facts(rows + ([("unproven", f"{count_text(unproven)} of these: graphcache prove")] if unproven else []))
    for one in compared:
        if one.verify_command:
            print(f"\nwhether a compiler of ours gives the other bytes, says:\n  {one.verify_command}")
        if one.to_build:
            print(f"\nto do, {_cost_text(one)}:\n  {one.command}")


def _expected_text(comparison: Comparison) -> str:
    if not comparison.to_compile:
        return ""
    expected = comparison.expected
    if expected is None:
        return "unknown"
    about = "" if expected.basis == "recorded" else f"about, from {expected.basis}"
    return f"{secs_text(expected.secs)} {about}".rstrip()


def _cost_text(one: Compared) -> str:
    if not one.to_compile:
        return "nothing to compile, the manifest to write again"
    text = f"{len(one.to_compile)} to compile, about {secs_text(one.expected_secs)} one after another"
    return text + (f" and {one.unknown_costs} of unknown cost" if one.unknown_costs else "")


def _as_json(
    compared: Sequence[Compared], store: LocalStore, toolchain: VisibleParts, since: str | None
) -> Mapping[str, Any]:
    every = [comparison for one in compared for comparison in one.comparisons]
    return {
        "cache": str(store.root),
        "since": since,
        "toolchain": dict(toolchain.parts),
        "not_compared": dict(toolchain.missing),
        "manifests": [
            {
                "file": str(one.baseline.path),
                "model": one.baseline.manifest.model,
                "toolchain": dict(one.baseline.recorded.toolchain),
                "graphs": [comparison.as_json() for comparison in one.comparisons],
                "to_compile": len(one.to_compile),
                "expected_secs": one.expected_secs,
                "unknown_costs": one.unknown_costs,
                "command": one.command if one.to_build else None,
                "verify_command": one.verify_command or None,
            }
            for one in compared
        ],
        "faults": [fault.as_json() for fault in store.faults],
        "counts": dict(Counter(comparison.kind for comparison in every)),
        "to_do": sum(comparison.to_do for comparison in every),
    }
