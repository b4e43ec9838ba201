"""`graphcache gc`: what a cache can do without, by size, age or manifest; deleted only with --yes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cli.cache import KEY_DIGITS, by_name, one_remote, open_cache, usage_of
from cli.options import PATH, cache_option, cli_command, json_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache.errors import StoreError, UsageError
from graphcache.local.memo import memo_of
from graphcache.local.usage import Ledger
from graphcache.process.shown import bytes_text, count_text
from graphcache.process.streams import report_warning
from graphcache.store.foreign import is_foreign
from graphcache.store.gc import Limits, Plan, apply, plan
from graphcache.store.local import LocalStore

SIZES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
AGES = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def _quantity(units: Mapping[str, float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback that turns `20GB` or `30d` into bytes or seconds."""

    def convert(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", value, re.ASCII)
        scale = {unit.lower(): scale for unit, scale in units.items()}.get(found[2].lower()) if found else None
        if found is None or scale is None:
            raise click.BadParameter(f"{value!r} is not a number with a unit; units: {', '.join(units)}")
        quantity = float(found[1]) * scale
        if not math.isfinite(quantity):
            raise click.BadParameter(f"a number of {len(found[1])} digits is larger than any cache")
        return quantity

    return convert


@cli_command(
    "gc",
    examples=(
        "graphcache gc",
        "graphcache gc --max-size 20GB --max-age 90d",
        "graphcache gc --keep-manifest cache_manifests/llama-3.1-8b-adamw.json --yes",
        "graphcache gc --remote s3://bucket/graphcache --max-size 200GB --keep-manifest llama-3.1-8b.json",
    ),
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_quantity(SIZES),
    help="Keep this much, such as 20GB; what was used longest ago goes first.",
)
@click.option(
    "--max-age",
    metavar="AGE",
    callback=_quantity(AGES),
    help="Delete what was not used for so long, such as 90d (h, d, w).",
)
@click.option(
    "--keep-manifest",
    "manifests",
    type=PATH,
    metavar="FILE",
    multiple=True,
    help="Keep the entries of this manifest whatever the limits say; without limits, delete all others. Repeatable.",
)
@click.option(
    "--remote",
    metavar="URL",
    help="Instead of the cache, what lies there: s3://, gs://, or a shared folder. GRAPHCACHE_REMOTE does not count.",
)
@click.option("--yes", is_flag=True, help="Delete; without it, only show what would go.")
@cache_option
@json_option
def command(
    max_size: float | None,
    max_age: float | None,
    manifests: tuple[Path, ...],
    remote: str | None,
    yes: bool,
    cache: str | None,
    as_json: bool,
) -> None:
    """Delete entries by size, age or manifest; a dry run unless --yes.

    Also swept: objects that no entry names, files of killed writes (after a day), and old logs, failures and
    quarantined files (after 30 days). An object that an entry names is never deleted, also while builds run.
    """
    if remote is not None and cache is not None:
        raise UsageError("--remote and --cache name two places", hint="collect one after the other")
    size_bytes = None if max_size is None else int(max_size)
    limits = Limits(max_size_bytes=size_bytes, max_age_secs=max_age, keep=_keep(manifests))
    done = _collect(cache, limits, yes) if remote is None else _collect_remote(remote, limits, yes)
    if as_json:
        emit_json(_as_json(done, yes))
    else:
        _show(done, yes)


@dataclass(frozen=True)
class Done:
    """What was planned, and done if that was asked for, in a cache or a remote (`kind`) at `place`.

    later: objects of evicted entries that stay until they are a day old
    """

    kind: str
    place: str
    planned: Plan
    later: int = 0


def _collect(cache: str | None, limits: Limits, yes: bool) -> Done:
    store = open_cache(cache)
    used = {key: usage.last_used_secs for key, usage in usage_of(store).items()}
    planned = plan(store, limits, last_use=used)
    if yes:
        apply(store, planned)
        _forget(store, planned)
    return Done("cache", str(store.root), planned)


def _collect_remote(text: str, limits: Limits, yes: bool) -> Done:
    """A folder is collected as the cache that it is; an object store has neither renames nor times of use."""
    tier = one_remote([text], written=True)
    if tier.url.scheme == "file":
        store = LocalStore(tier.url.place)
        if not store.root.is_dir() or is_foreign(store.layout):
            raise StoreError(f"there is no cache at {store.root}", hint="--remote names another")
        planned = plan(store, limits)
        if yes:
            apply(store, planned)
        return Done("remote", tier.name, planned)
    from graphcache.remote.gc import Collector
    from graphcache.remote.object_store import ObjectStoreFiles

    assert isinstance(tier.files, ObjectStoreFiles)
    collector = Collector.of(tier, tier.files)
    planned = tier.files.run(collector.plan(limits))
    later = tier.files.run(collector.apply(planned)) if yes else 0
    return Done("remote", tier.name, planned, later)


def _keep(manifests: tuple[Path, ...]) -> frozenset[str] | None:
    """Key digests that the manifests name; None when none was given, which is not the same as one that is empty.

    Raises UsageError when they name none at all, of which nothing would be kept; warns of each other one without.
    """
    if not manifests:
        return None
    named = {path: _keys(path) for path in manifests}
    without = [path for path, keys in named.items() if not keys]
    if len(without) == len(named):
        raise UsageError(
            f"{', '.join(map(str, without))} names no key: its graphs are planned, so no entry would be kept for it",
            hint=f"graphcache build --shapes-from {without[0]} --manifest {without[0]} writes their keys",
        )
    for path in without:
        report_warning("manifest", f"{path} names no key, since its graphs are planned: no entry is kept for it")
    return frozenset().union(*named.values())


def _keys(path: Path) -> frozenset[str]:
    from graphcache.manifest.file import read_manifest

    return frozenset(graph.key.digest for graph in read_manifest(path).graphs if graph.key is not None)


def _forget(store: LocalStore, planned: Plan) -> None:
    with memo_of(store.root) as memo:
        Ledger(memo).forget(eviction.entry.key.digest for eviction in planned.evictions)


def _as_json(done: Done, deleted: bool) -> dict[str, Any]:
    planned = done.planned
    return {
        done.kind: done.place,
        "deleted": deleted,
        "later": done.later,
        "evictions": [
            {
                "key_digest": eviction.entry.key.digest,
                "graph": eviction.entry.graph.name,
                "reason": eviction.reason,
                "size_bytes": eviction.entry.size_bytes,
            }
            for eviction in planned.evictions
        ],
        "leftovers": [
            {"path": leftover.path, "reason": leftover.reason, "size_bytes": leftover.size_bytes}
            for leftover in planned.leftovers
        ],
        "kept": len(planned.kept),
        "kept_bytes": planned.kept_bytes,
        "freed_bytes": planned.freed_bytes,
    }


def _show(done: Done, deleted: bool) -> None:
    planned = done.planned
    reasons = {eviction.entry.key: eviction.reason for eviction in planned.evictions}
    rows = [
        (entry.key.digest[:KEY_DIGITS], entry.graph.name, reasons[entry.key], count_text(entry.size_bytes))
        for entry in by_name(eviction.entry for eviction in planned.evictions)
    ]
    rows += [("", item.path, item.reason, count_text(item.size_bytes)) for item in planned.leftovers]
    emit_table(("key", "graph or file", "reason", "bytes"), rows, right=("bytes",))
    kept = f"{count_text(len(planned.kept))} ({bytes_text(planned.kept_bytes)})"
    gone = f"{count_text(len(rows))} ({bytes_text(planned.freed_bytes)})"
    later = [("later", f"{count_text(done.later)} objects, once they are a day old")] if done.later else []
    emit_facts([("kept", kept), *later, ("deleted" if deleted else "to delete", gone)])
    if rows and not deleted:
        print("Nothing was deleted; --yes deletes.")
