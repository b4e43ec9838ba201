"""`graphcache keygen`: a private key, and the file of keys to trust."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cli.options import PATH, cli_command, json_option
from cli.render import emit_facts, emit_json

DAY_SECS = 86_400


@cli_command(
    "keygen",
    examples=("graphcache keygen signing.pem --trust trust.json --name ci --days 365", "graphcache keygen signing.pem"),
)
@click.argument("key", type=PATH)
@click.option("--trust", type=PATH, metavar="FILE", help="Add the public key to this file of keys to trust.")
@click.option("--name", default="builder", show_default=True, help="What the trust file calls the key.")
@click.option("--days", type=click.IntRange(1, 36_500), help="The trust file ends the key after so many days.")
@json_option
def command(key: Path, trust: Path | None, name: str, days: int | None, as_json: bool) -> None:
    """Make a key that signs artifacts. Its public half goes into a file of keys to trust.

    KEY is written for its owner alone and never shown. A build signs what it commits when GRAPHCACHE_SIGNING_KEY_FILE
    names the file, or GRAPHCACHE_SIGNING_KEY holds its text.
    """
    from graphcache.trust.keys import make_key
    from graphcache.trust.signature import utc
    from graphcache.trust.trusted import TrustedKey, add_key, read_trust

    if trust is not None and trust.exists():
        # Before a key is made that it could not take.
        read_trust(trust)
    public = make_key(key)
    ends = None if days is None else utc(time.time() + days * DAY_SECS)
    if trust is not None:
        add_key(trust, TrustedKey(name, public, ends))
    facts = {"key": str(key), "public": public, "name": name, "not_after": ends, "trust": trust and str(trust)}
    if as_json:
        emit_json(facts)
    else:
        emit_facts((what, str(value)) for what, value in facts.items() if value is not None)
