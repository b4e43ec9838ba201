"""`graphcache doctor`: what a build would find on this machine, and what to do."""

from __future__ import annotations

from cli.options import cache_option, cli_command, json_option
from cli.render import emit_json
from graphcache.doctor import examine
from graphcache.process.shown import printable

BAD = 2


@cli_command("doctor", examples=("graphcache doctor", "graphcache doctor --json"))
@cache_option
@json_option
def command(cache: str | None, as_json: bool) -> int:
    """Show what a build would find on this machine, and what to do. Exit code 2: builds would not work."""
    findings = examine(cache)
    if as_json:
        emit_json({"ok": all(f.level != "bad" for f in findings), "findings": [f.as_json() for f in findings]})
    else:
        width = max(len(f.name) for f in findings)
        for finding in findings:
            print(printable(f"{finding.level:<4}  {finding.name:<{width}}  {finding.fact}"))
            if finding.hint:
                print(printable(f"{'':<4}  {'':<{width}}  -> {finding.hint}"))
    return BAD if any(f.level == "bad" for f in findings) else 0
