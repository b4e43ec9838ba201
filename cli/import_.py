"""`graphcache import`: the artifacts of an exported file, added to the cache."""

from __future__ import annotations

from pathlib import Path

import click

from cli.cache import warn_of_faults
from cli.options import PATH, cache_option, cli_command, json_option, trust_option
from cli.render import emit_facts, emit_json
from graphcache.errors import CorruptError, StoreError
from graphcache.location import cache_dir
from graphcache.process.shown import count_text
from graphcache.remote.opening import open_store
from graphcache.store.foreign import is_foreign


@cli_command("import", examples=("graphcache import graphs.tar", "graphcache import graphs.tar --trust trust.json"))
@click.argument("file", type=PATH)
@cache_option
@trust_option
@json_option
def command(file: Path, cache: str | None, trust: Path | None, as_json: bool) -> int:
    """Add the artifacts of an exported file to the cache. Everything is checked.

    A file with a link, a name that is none of a cache's, or anything else that export does not write is refused whole.
    Exit code 1: an artifact did not pass its checks, or is not signed by a trusted key; the others were taken.
    """
    from graphcache.remote.bundle import import_bundle

    store = open_store(cache_dir(cache), trust=trust)
    if is_foreign(store.layout):
        raise StoreError(f"{store.root} is no cache: something else lies there", hint="--cache names another")
    done = import_bundle(store, file)
    warn_of_faults([*store.faults, *done.faults])
    if as_json:
        faults = [fault.as_json() for fault in done.faults]
        lists = {"imported": list(done.imported), "present": list(done.present), "faults": faults}
        emit_json({"cache": str(store.root), "file": str(file), **lists})
    else:
        lengths = {"present": len(done.present), "refused": len(done.faults), "imported": len(done.imported)}
        emit_facts([("cache", str(store.root)), *((name, count_text(count)) for name, count in lengths.items())])
    return CorruptError.exit_code if done.faults else 0
