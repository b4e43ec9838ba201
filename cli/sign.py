"""`graphcache sign`: signatures for what was built without a key, or whose signature is over."""

from __future__ import annotations

from dataclasses import replace as with_
from pathlib import Path

import click

from cli.cache import entries_of_manifests, open_cache, warn_of_faults
from cli.options import cache_option, cli_command, json_option, manifests_option
from cli.render import emit_facts, emit_json
from graphcache.errors import CorruptError
from graphcache.process.shown import count_text
from graphcache.store.find import by_prefix

DAY_SECS = 86_400.0


@cli_command(
    "sign",
    examples=(
        "graphcache sign",
        "graphcache sign --manifest cache_manifests/llama-3.1-8b-adamw.json --days 365",
        "graphcache sign 3f2a91c04b7e --replace",
    ),
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@manifests_option("Only the artifacts that this manifest names; may be given several times.")
@click.option("--days", type=click.IntRange(1, 36_500), help="The signatures end after so many days. Default: never.")
@click.option("--replace", is_flag=True, help="Sign also what another key has signed, in its place.")
@cache_option
@json_option
def command(
    keys: tuple[str, ...],
    manifests: tuple[Path, ...],
    days: int | None,
    replace: bool,
    cache: str | None,
    as_json: bool,
) -> int:
    """Sign entries of the cache that no signature holds for.

    That is what was built without a key, and what was signed by a key or for a time that is over. The key is that of
    builds: GRAPHCACHE_SIGNING_KEY_FILE or GRAPHCACHE_SIGNING_KEY. Whoever could write to the cache may have written
    what is signed now: prove it, or verify --rebuild it, before. With KEY, a key's digest or its first digits, only
    these. Exit code 1: an artifact is damaged, and was not signed.
    """
    from graphcache.trust.errors import TrustError
    from graphcache.trust.keys import KEY_FILE_VARIABLE, KEY_VARIABLE
    from graphcache.trust.sign import sign

    store = open_cache(cache)
    signer = store.guard.signer
    if signer is None:
        hint = f"set {KEY_FILE_VARIABLE} or {KEY_VARIABLE}; graphcache keygen makes a key"
        raise TrustError("there is no key to sign with", hint=hint)
    if days is not None:
        signer = with_(signer, valid_secs=days * DAY_SECS)
    entries = entries_of_manifests(store, manifests, complete=True)
    if keys:
        named = {by_prefix(store, key).key.digest for key in keys}
        entries = [entry for entry in entries if entry.key.digest in named]
    done = sign(store, entries, signer, replace=replace)
    warn_of_faults(store.faults)
    if as_json:
        facts = {"signed": list(done.signed), "before": list(done.before), "damaged": list(done.damaged)}
        emit_json({"cache": str(store.root), "public": signer.public, **facts, "records": done.records})
    else:
        counts = [("before", done.before), ("damaged", done.damaged), ("signed", done.signed)]
        emit_facts(
            [
                ("cache", str(store.root)),
                ("public", signer.public),
                *((name, count_text(len(found))) for name, found in counts),
                ("records", f"{count_text(done.records)} verdicts and programs besides"),
            ]
        )
    return CorruptError.exit_code if done.damaged else 0
