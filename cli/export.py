"""`graphcache export`: artifacts of the cache in one file."""

from __future__ import annotations

from pathlib import Path

import click

from cli.cache import entries_of_manifests, open_cache, warn_of_faults
from cli.options import PATH, cache_option, cli_command, json_option, manifests_option
from cli.render import emit_facts, emit_json
from graphcache.process.shown import bytes_text, count_text


@cli_command(
    "export",
    examples=(
        "graphcache export graphs.tar",
        "graphcache export graphs.tar --manifest cache_manifests/llama-3.1-8b-adamw.json",
    ),
)
@click.argument("file", type=PATH)
@manifests_option("Only the artifacts that this manifest names; may be given several times.")
@cache_option
@json_option
def command(file: Path, manifests: tuple[Path, ...], cache: str | None, as_json: bool) -> None:
    """Write artifacts of the cache into one file. It is for machines without a network.

    FILE is a tar of the cache's own files, signatures included, each artifact checked. It is written whole or not at
    all. An artifact that is damaged, or that a manifest names and the cache lacks, is an error.
    """
    from graphcache.remote.bundle import export

    store = open_cache(cache)
    try:
        entries = entries_of_manifests(store, manifests, complete=True)
        size_bytes = export(store, entries, file)
    finally:
        warn_of_faults(store.faults)
    if as_json:
        keys = sorted(entry.key.digest for entry in entries)
        emit_json({"cache": str(store.root), "file": str(file), "exported": keys, "size_bytes": size_bytes})
    else:
        emit_facts(
            [
                ("file", str(file)),
                ("exported", count_text(len(entries))),
                ("bytes", f"{count_text(size_bytes)} ({bytes_text(size_bytes)})"),
            ]
        )
