"""`graphcache pull`: the cache, filled from a remote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.cache import one_remote, warn_of_faults
from cli.options import cache_option, cli_command, json_option, manifests_option, remote_option, trust_option
from cli.render import emit_facts, emit_json
from graphcache.errors import CorruptError, StoreError
from graphcache.location import cache_dir
from graphcache.process.shown import count_text
from graphcache.remote.opening import open_store
from graphcache.store.foreign import is_foreign


@cli_command(
    "pull",
    examples=(
        "graphcache pull --remote s3://bucket/graphcache",
        "graphcache pull --remote https://cache.example/graphcache --manifest cache_manifests/llama-3.1-8b-adamw.json",
    ),
)
@manifests_option("Only the artifacts that this manifest names; may be given several times.")
@cache_option
@remote_option
@trust_option
@json_option
def command(
    manifests: tuple[Path, ...], cache: str | None, remotes: tuple[str, ...], trust: Path | None, as_json: bool
) -> int:
    """Fill the cache from a remote, everything checked.

    What is here stays. What does not pass its check there is named, and not taken. Exit code 1: some of it did not
    pass, or the remote lacks what a manifest names.
    """
    from graphcache.manifest.file import read_manifest
    from graphcache.remote.pull import pull_all, pull_manifests

    recorded = [read_manifest(path) for path in manifests]
    tier = one_remote(remotes)
    store = open_store(cache_dir(cache), trust=trust)
    if is_foreign(store.layout):
        raise StoreError(f"{store.root} is no cache: something else lies there", hint="--cache names another")
    done = tier.files.run(pull_manifests(tier, store, recorded) if recorded else pull_all(tier, store))
    warn_of_faults([*store.faults, *tier.faults])
    facts: dict[str, Any] = {
        "cache": str(store.root),
        "remote": tier.name,
        "pulled": list(done.pulled),
        "present": list(done.present),
        "bad": list(done.bad),
        "absent": list(done.absent),
    }
    if as_json:
        emit_json(facts)
    else:
        counts = [(name, count_text(len(facts[name]))) for name in ("present", "absent", "bad", "pulled")]
        emit_facts([("cache", facts["cache"]), ("remote", facts["remote"]), *counts])
    return CorruptError.exit_code if done.bad or done.absent else 0
