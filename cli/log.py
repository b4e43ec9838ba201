"""`graphcache log`: who compiled what, when, with which toolchain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from cli.cache import one_remote, open_cache, toolchain_text, warn_of_faults
from cli.options import cache_option, cli_command, json_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache.errors import UsageError
from graphcache.process.shown import count_text
from graphcache.store.base import Fault
from graphcache.store.builds import BuildRecord

# Names of graphs in a line; the rest is a count.
NAMED = 3


@cli_command(
    "log",
    examples=("graphcache log", "graphcache log 3f2a91c04b7e", "graphcache log --remote s3://bucket/graphcache --json"),
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--remote", metavar="URL", help="The log of this remote, instead of the cache's.")
@cache_option
@json_option
def command(keys: tuple[str, ...], remote: str | None, cache: str | None, as_json: bool) -> None:
    """Show who compiled what, when, with which toolchain.

    A line for each build that compiled a graph, or failed to. KEY is a key's digest, or its first digits: only builds
    of it. `signed by` is the key that signed the line, if one did. With GRAPHCACHE_TRUST, only lines that a trusted key
    has signed are shown; the others are warnings.
    """
    if remote is not None and cache is not None:
        raise UsageError("--remote and --cache name two places", hint="look at one after the other")
    place, lines, faults = _of_cache(cache) if remote is None else _of_remote(remote)
    chosen = [(record, signer) for record, signer in lines if _is_of(record, keys)]
    warn_of_faults(faults)
    if as_json:
        emit_json({"place": place, "builds": [{**record.as_json(), "signer": signer} for record, signer in chosen]})
        return
    emit_table(
        ("started", "ended", "user", "host", "toolchain", "compiled", "failed", "signed by", "graphs"),
        [_row(record, signer) for record, signer in chosen],
        right=("compiled", "failed"),
    )
    compiled = sum(record.count("compiled") for record, _ in chosen)
    emit_facts([("builds", count_text(len(chosen))), ("compiled", count_text(compiled))])


Lines = list[tuple[BuildRecord, str | None]]


def _of_cache(cache: str | None) -> tuple[str, Lines, list[Fault]]:
    store = open_cache(cache)
    return str(store.root), store.builds(), store.faults


def _of_remote(remote: str) -> tuple[str, Lines, list[Fault]]:
    from graphcache.trust.guard import guard_of_environment

    tier = one_remote([remote])
    return tier.name, tier.files.run(tier.builds(guard_of_environment())), tier.faults


def _is_of(record: BuildRecord, keys: Iterable[str]) -> bool:
    prefixes = tuple(keys)
    return not prefixes or any(each.key is not None and each.key.startswith(prefixes) for each in record.built)


def _row(record: BuildRecord, signer: str | None) -> tuple[Any, ...]:
    names = [each.graph for each in record.built]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        record.started,
        record.ended,
        record.user,
        record.host,
        toolchain_text(record.toolchain),
        count_text(record.count("compiled")),
        count_text(record.count("failed")),
        signer[:12] if signer else "",
        ", ".join(names[:NAMED]) + more,
    )
