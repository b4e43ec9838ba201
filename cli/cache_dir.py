"""`graphcache cache-dir`: where the cache is."""

from __future__ import annotations

from cli.options import cache_option, cli_command, json_option
from cli.render import emit_json
from graphcache.location import cache_dir
from graphcache.process.shown import printable


@cli_command("cache-dir", examples=("graphcache cache-dir", 'graphcache cache-dir --cache "~/cache" --json'))
@cache_option
@json_option
def command(cache: str | None, as_json: bool) -> None:
    """Print the cache's folder, which need not exist yet.

    Every command and the trainer find the cache in this way.
    """
    root = cache_dir(cache)
    if as_json:
        emit_json({"cache": str(root)})
    else:
        print(printable(str(root)))
