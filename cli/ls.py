"""`graphcache ls`: the entries of a cache, one a line."""

from __future__ import annotations

from cli.cache import KEY_DIGITS, by_name, entry_json, open_cache, proof_state, toolchain_text, warn_of_faults
from cli.options import cache_option, cli_command, json_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache.process.shown import bytes_text, count_text, secs_text


@cli_command("ls", examples=("graphcache ls", "graphcache ls --cache /shared/graphcache", "graphcache ls --json"))
@cache_option
@json_option
def command(cache: str | None, as_json: bool) -> None:
    """List the graphs in the cache, sorted by catalog and name.

    A line has the shapes of the graph's arguments, `4*8388608` for four alike. Entries are checked, the artifacts that
    they name are not: that is what verify does.
    """
    store = open_cache(cache)
    entries = by_name(store.entries())
    verdicts = {entry.key.digest: store.verdict(entry) for entry in entries}
    warn_of_faults(store.faults)
    size_bytes = sum(entry.size_bytes for entry in entries)
    if as_json:
        faults = [fault.as_json() for fault in store.faults]
        listed = [entry_json(entry, verdicts[entry.key.digest]) for entry in entries]
        emit_json({"cache": str(store.root), "entries": listed, "faults": faults, "size_bytes": size_bytes})
        return
    emit_table(
        ("key", "graph", "catalog", "shapes", "toolchain", "created", "compiled in", "bytes", "proof"),
        [
            (
                entry.key.digest[:KEY_DIGITS],
                entry.graph.name,
                entry.graph.catalog,
                entry.graph.shapes,
                toolchain_text(entry.key.parts),
                entry.created,
                secs_text(entry.cost.wall_secs),
                count_text(entry.size_bytes),
                proof_state(verdicts[entry.key.digest]),
            )
            for entry in entries
        ],
        right=("compiled in", "bytes"),
    )
    emit_facts(
        [
            ("entries", count_text(len(entries))),
            ("bytes", f"{count_text(size_bytes)} ({bytes_text(size_bytes)})"),
        ]
    )
