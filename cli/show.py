"""`graphcache show`: one entry, with all that is known about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from cli.cache import entry_json, open_cache, toolchain_text, usage_of, warn_of_faults
from cli.options import cache_option, cli_command, json_option
from cli.render import emit_facts, emit_json
from graphcache.artifact import Artifact
from graphcache.graph import TensorSpec
from graphcache.local.usage import Usage
from graphcache.process.shown import bytes_text, count_text, secs_text
from graphcache.proof.verdict import Verdict
from graphcache.store.base import Entry
from graphcache.store.find import by_prefix


@cli_command("show", examples=("graphcache show 3f2a", "graphcache show 3f2a91c04b7e --json"))
@click.argument("key")
@cache_option
@json_option
def command(key: str, cache: str | None, as_json: bool) -> None:
    """Show one entry: its key, graph, cost and artifact.

    KEY is a key's digest, or the first digits of one that no other entry shares. The artifact is checked; a damaged
    one is an error.
    """
    store = open_cache(cache)
    try:
        entry = by_prefix(store, key)
        artifact = store.open(entry)
        verdict = store.verdict(entry)
    finally:
        warn_of_faults(store.faults)
    usage = usage_of(store).get(entry.key.digest, Usage(0, 0.0))
    path = store.layout.object(entry.artifact_digest)
    if as_json:
        emit_json({**entry_json(entry, verdict), "file": str(path), "hits": usage.hits, **_sizes(artifact)})
    else:
        _show(entry, artifact, str(path), usage, verdict)


def _sizes(artifact: Artifact) -> dict[str, Any]:
    return {"runnable_bytes": len(artifact.runnable), "dfg_bytes": len(artifact.dfg)}


def _show(entry: Entry, artifact: Artifact, path: str, usage: Usage, verdict: Verdict | None) -> None:
    graph = entry.graph
    estimate = "none" if entry.facts.estimate_ns is None else f"{count_text(entry.facts.estimate_ns)} ns"
    emit_facts(
        [
            ("key", entry.key.digest),
            *((f"  {name}", value) for name, value in entry.key.parts.items()),
            ("graph", f"{graph.name} of catalog {graph.catalog}"),
            ("function", graph.function),
            *((f"  {name}", str(value)) for name, value in sorted(graph.constants.items())),
            ("arguments", _specs(graph.args)),
            ("results", _specs(artifact.outputs)),
            ("created", entry.created),
            ("compiled in", f"{secs_text(entry.cost.wall_secs)} (CPU {secs_text(entry.cost.cpu_secs)})"),
            ("compiler's memory", bytes_text(entry.cost.peak_rss_bytes)),
            ("estimated device time", estimate),
            *_proof(verdict),
            ("artifact", entry.artifact_digest),
            ("file", path),
            ("hits", count_text(usage.hits)),
            ("bytes", f"{count_text(entry.size_bytes)} ({_parts_text(artifact)})"),
        ]
    )


def _proof(verdict: Verdict | None) -> list[tuple[str, str]]:
    """What ran, on what, and each result's error beside its bound."""
    if verdict is None:
        return [("proof", "unproven: nobody has tried")]
    ran = f"{verdict.ran} of {toolchain_text(verdict.releases)}, {verdict.sets} sets of inputs from seed {verdict.seed}"
    rows = [("proof", verdict.text), ("  ran", f"{ran}, {secs_text(verdict.secs)}, {verdict.created}")]
    for place, result in enumerate(verdict.results):
        error = "not a number" if result.error is None else f"{result.error:.3g}"
        rows.append((f"  result {place}", f"{result.dtype}, largest error {error} where {result.bound:.3g} is allowed"))
    return rows


def _specs(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)


def _parts_text(artifact: Artifact) -> str:
    return f"runnable {count_text(len(artifact.runnable))}, dfg {count_text(len(artifact.dfg))}"
