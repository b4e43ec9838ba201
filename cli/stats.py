"""`graphcache stats`: what a cache holds, what it saved, and what lies around in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from cli.cache import open_cache, warn_of_faults
from cli.options import cache_option, cli_command, json_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache.local.memo import memo_of
from graphcache.local.usage import Ledger
from graphcache.process.shown import bytes_text, count_text, secs_text
from graphcache.store.base import Entry
from graphcache.store.layout import files
from graphcache.store.local import LocalStore

# Name, help text and field of what Prometheus gets for each catalog. Gauges: gc makes each of them smaller.
METRICS = (
    ("graphcache_entries", "Artifacts in the cache.", "entries"),
    ("graphcache_bytes", "Bytes of these artifacts.", "size_bytes"),
    ("graphcache_hits", "Uses of these artifacts that this machine remembers.", "hits"),
    ("graphcache_compile_seconds", "Wall seconds that compiling them took.", "compile_secs"),
    ("graphcache_saved_seconds", "Wall seconds of compiling that the hits saved.", "saved_secs"),
)


@cli_command("stats", examples=("graphcache stats", "graphcache stats --json", "graphcache stats --format prometheus"))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "prometheus"]),
    default="table",
    show_default=True,
    help="Tables for people, or Prometheus' text format, such as for its node exporter's textfile collector.",
)
@cache_option
@json_option
def command(form: str, cache: str | None, as_json: bool) -> None:
    """Show sizes, hits and compile times of the cache, by catalog.

    Hits and misses are those that this machine remembers, of builds and of training runs' look-ups; seconds saved are
    hits times what each compile took.
    """
    store = open_cache(cache)
    facts = _facts(store)
    warn_of_faults(store.faults)
    if as_json:
        emit_json(facts)
    elif form == "prometheus":
        print("\n".join(_prometheus(facts)))
    else:
        _show(facts)


def _facts(store: LocalStore) -> dict[str, Any]:
    entries = list(store.entries())
    with memo_of(store.root) as memo:
        ledger = Ledger(memo)
        usage, missed = ledger.usage(), ledger.misses()
    hits = {key: used.hits for key, used in usage.items()}
    failures = store.failures()
    objects, quarantined = list(store.layout.object_files()), files(store.layout.quarantine)
    names = sorted({entry.graph.catalog for entry in entries})
    return {
        "cache": str(store.root),
        "catalogs": {name: _totals([e for e in entries if e.graph.catalog == name], hits) for name in names},
        "total": _totals(entries, hits),
        "misses": _misses(missed),
        "objects": len(objects),
        "objects_bytes": _size_bytes(objects),
        "failures": len(failures),
        "failures_retryable": sum(not failure.is_final for failure in failures),
        "quarantined": len(quarantined),
        "quarantined_bytes": _size_bytes(quarantined),
    }


def _prometheus(facts: dict[str, Any]) -> Iterator[str]:
    """Lines of https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format."""
    for name, text, field in METRICS:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} gauge"
        for catalog, totals in facts["catalogs"].items():
            yield f'{name}{{catalog="{_label(catalog)}"}} {totals[field]}'
    yield "# HELP graphcache_misses Look-ups without an artifact to use that this machine remembers, by reason."
    yield "# TYPE graphcache_misses gauge"
    for catalog, kinds in facts["misses"].items():
        for kind, many in kinds.items():
            yield f'graphcache_misses{{catalog="{_label(catalog)}",reason="{_label(kind)}"}} {many}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _misses(missed: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Counts by kind of reason, by catalog."""
    found: dict[str, dict[str, int]] = {}
    for (catalog, kind), many in missed.items():
        found.setdefault(catalog, {})[kind] = many
    return found


def _totals(entries: Iterable[Entry], hits: dict[str, int]) -> dict[str, Any]:
    chosen = list(entries)

    def total(value: Callable[[Entry], float]) -> float:
        return sum(value(entry) for entry in chosen)

    return {
        "entries": len(chosen),
        "hits": sum(hits.get(entry.key.digest, 0) for entry in chosen),
        "compile_secs": total(lambda entry: entry.cost.wall_secs),
        "saved_secs": total(lambda entry: entry.cost.wall_secs * hits.get(entry.key.digest, 0)),
        "size_bytes": sum(entry.size_bytes for entry in chosen),
    }


def _size_bytes(paths: Iterable[Path]) -> int:
    """The size of those files that still exist: another process may delete one meanwhile."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def _show(facts: dict[str, Any]) -> None:
    rows = [*facts["catalogs"].items(), ("all", facts["total"])]
    emit_table(
        ("catalog", "entries", "hits", "compiled in", "saved", "bytes"),
        [
            (
                name,
                count_text(totals["entries"]),
                count_text(totals["hits"]),
                secs_text(totals["compile_secs"]),
                secs_text(totals["saved_secs"]),
                count_text(totals["size_bytes"]),
            )
            for name, totals in rows
        ],
        right=("entries", "hits", "compiled in", "saved", "bytes"),
    )
    print()
    missed = [(catalog, kind, count_text(many)) for catalog, kinds in facts["misses"].items() for kind, many in
              kinds.items()]  # fmt: skip
    if missed:
        emit_table(("catalog", "miss", "times"), missed, right=("times",))
        print()
    emit_facts(
        [
            ("cache", facts["cache"]),
            ("failures", f"{facts['failures']} ({facts['failures_retryable']} of them worth another try)"),
            ("quarantined", f"{facts['quarantined']} ({bytes_text(facts['quarantined_bytes'])})"),
            ("objects", f"{count_text(facts['objects'])} ({bytes_text(facts['objects_bytes'])})"),
        ]
    )
