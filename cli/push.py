"""`graphcache push`: entries of the cache, written to a remote that lacks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.cache import entries_of_manifests, one_remote, open_cache, warn_of_faults
from cli.options import cache_option, cli_command, json_option, manifests_option, remote_option
from cli.render import emit_facts, emit_json
from graphcache.errors import CorruptError
from graphcache.process.shown import bytes_text, count_text


@cli_command(
    "push",
    examples=(
        "graphcache push --remote s3://bucket/graphcache",
        "graphcache push --remote /shared/graphcache --manifest cache_manifests/llama-3.1-8b-adamw.json",
    ),
)
@manifests_option("Only the artifacts that this manifest names; may be given several times.")
@cache_option
@remote_option
@json_option
def command(manifests: tuple[Path, ...], cache: str | None, remotes: tuple[str, ...], as_json: bool) -> int:
    """Write entries of the cache to a remote that lacks them.

    Every artifact is checked before. The first entry of a key stays; one whose object is gone or cut short is written
    again. Exit code 1: an artifact here is damaged, and was not pushed.
    """
    from graphcache.remote.push import push

    tier = one_remote(remotes, written=True)
    store = open_cache(cache)
    done = tier.files.run(push(tier, store, entries_of_manifests(store, manifests)))
    warn_of_faults([*store.faults, *tier.faults])
    facts: dict[str, Any] = {
        "cache": str(store.root),
        "remote": tier.name,
        "pushed": list(done.pushed),
        "present": list(done.present),
        "damaged": list(done.damaged),
        "answers": done.answers,
        "pushed_bytes": done.pushed_bytes,
    }
    if as_json:
        emit_json(facts)
    else:
        emit_facts(
            [
                ("cache", facts["cache"]),
                ("remote", facts["remote"]),
                ("present", count_text(len(done.present))),
                ("damaged", count_text(len(done.damaged))),
                ("programs", count_text(done.answers)),
                ("pushed", count_text(len(done.pushed))),
                ("bytes", f"{count_text(done.pushed_bytes)} ({bytes_text(done.pushed_bytes)})"),
            ]
        )
    return CorruptError.exit_code if done.damaged else 0
