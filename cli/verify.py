"""`graphcache verify`: every byte against its digest; optionally results against float64, and rebuilds."""

from __future__ import annotations

from typing import Any

import click

from cli.cache import fault_text, open_cache
from cli.options import cache_option, cli_command, json_option
from cli.render import bytes_text, count_text, emit_facts, emit_json, emit_table
from graphcache.errors import CorruptError
from graphcache.verify import Report, verify


@cli_command(
    "verify",
    examples=(
        "graphcache verify",
        "graphcache verify 3f2a91c04b7e --numeric",
        "graphcache verify --rebuild --json",
    ),
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@cache_option
@json_option
def command(keys: tuple[str, ...], cache: str | None, as_json: bool) -> int:
    """Check every byte in the cache; optionally results and rebuilds. Exit code 1 when anything is corrupt.

    Without KEY, all entries and all files. KEY is a key's digest, or its first digits. What is corrupt is named and set
    aside, so that the next build compiles it again.
    """
    store = open_cache(cache)
    report = verify(store, keys)
    if as_json:
        emit_json({"cache": str(store.root), **_as_json(report)})
    else:
        _show(report)
    return 0 if report.sound else CorruptError.exit_code


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "faults": [fault.as_json() for fault in report.faults],
        "orphans": list(report.orphans),
        "strays": list(report.strays),
        "temporaries": list(report.temporaries),
        "entries": len(report.entries),
        "size_bytes": report.size_bytes,
    }


def _show(report: Report) -> None:
    for fault in report.faults:
        print(f"corrupt  {fault_text(fault)}")
    emit_table(
        ("leftover", "file"),
        [(what, path) for what in ("orphans", "strays", "temporaries") for path in getattr(report, what)],
    )
    emit_facts(
        [
            ("corrupt", count_text(len(report.faults))),
            ("entries", f"{count_text(len(report.entries))} whole"),
            ("bytes", f"{count_text(report.size_bytes)} ({bytes_text(report.size_bytes)})"),
        ]
    )
