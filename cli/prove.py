"""`graphcache prove`: whether what the cache holds computes what its graphs' functions say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cli.cache import open_cache, warn_of_faults
from cli.options import (
    MOST_SECS,
    Duration,
    cache_option,
    cli_command,
    given,
    json_option,
    manifests_option,
    timeout_option,
)
from cli.render import emit_facts, emit_json
from graphcache.build.build import DEFAULT_TIMEOUT_SECS, BuildOptions
from graphcache.build.prove import ProofListener, Proven, Quiet, prove
from graphcache.catalog import may_be_called
from graphcache.errors import CorruptError, UsageError
from graphcache.local.memo import memo_of
from graphcache.manifest.file import read_manifest, write_manifest
from graphcache.manifest.manifest import with_proofs
from graphcache.process.shown import count_text, printable, secs_text
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore

REFUSED = "{} is no function beside an installed catalog, so it is not run"


@cli_command(
    "prove",
    examples=(
        "graphcache prove",
        "graphcache prove 3f2a91c04b7e",
        "graphcache prove --manifest cache_manifests/smollm2-135m.json --budget 30m --jobs 2",
        "graphcache prove --budget 2h --json",
    ),
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@manifests_option("Prove the artifacts of this manifest, and write the verdicts into it; may be given several times.")
@click.option(
    "--budget",
    "budget_secs",
    type=Duration(),
    metavar="TIME",
    help="Start nothing that should not end within 90s, 30m or 2h from now, and stop then. Default: prove all.",
)
@click.option("--again", is_flag=True, help="Also what has a verdict.")
@click.option("--jobs", type=click.IntRange(min=1), help="Proofs at once. Default: as CPUs and memory allow.")
@timeout_option("A proof that takes longer is given up.", most_secs=MOST_SECS, default_secs=DEFAULT_TIMEOUT_SECS)
@cache_option
@json_option
def command(
    keys: tuple[str, ...],
    manifests: tuple[Path, ...],
    budget_secs: float | None,
    again: bool,
    jobs: int | None,
    timeout_secs: float,
    cache: str | None,
    as_json: bool,
) -> int:
    """Prove that artifacts compute what their graphs say. Exit code 1 when one is disproven, or could not be run.

    The lowered graph runs on the vendor's host executor, on inputs that would show a mistake; each element must lie
    within a bound that follows from the roundings of the graph's dtypes (docs/proof.md). Shortest first; interrupted in
    any way, it goes on where it was. A disproven artifact is used by nothing from then on. Without KEY and --manifest:
    all entries. KEY is a key's digest, or its first digits.
    """
    recorded = {path: read_manifest(path) for path in manifests}
    store = open_cache(cache)
    entries = _selected(store, keys, {key for manifest in recorded.values() for key in manifest.artifacts})
    warn_of_faults(store.faults)
    if not keys and not manifests:
        entries = list(store.entries())
    # Others may have written the entries, and the functions that they name are called.
    refused = [
        Proven(entry=entry, ending="skipped", reason=REFUSED.format(entry.graph.function))
        for entry in entries
        if not _may(entry)
    ]
    entries = [entry for entry in entries if _may(entry)]
    listener: ProofListener = Quiet() if as_json else Lines()
    with memo_of(store.root) as memo:
        found = refused + prove(
            store,
            entries,
            memo,
            options=BuildOptions(timeout_secs=timeout_secs, **given(jobs=jobs)),
            budget_secs=budget_secs,
            again=again,
            listener=listener,
        )
    for path, manifest in recorded.items():
        write_manifest(path, with_proofs(manifest, [each.verdict for each in found if each.verdict]))
    if as_json:
        emit_json({"cache": str(store.root), "graphs": [each.as_json() for each in found]})
    else:
        show(found)
    return CorruptError.exit_code if any(each.ending in ("disproven", "failed") for each in found) else 0


def _may(entry: Entry) -> bool:
    return may_be_called(entry.graph)


def _selected(store: LocalStore, prefixes: Sequence[str], digests: set[str]) -> list[Entry]:
    """Raises UsageError for a prefix of no key."""
    entries = list(store.entries())
    for prefix in prefixes:
        if not any(entry.key.digest.startswith(prefix) for entry in entries):
            raise UsageError(f"no entry has a key that begins with {prefix!r}", hint="graphcache ls lists the keys")
    return [
        entry
        for entry in entries
        if entry.key.digest in digests or (prefixes and entry.key.digest.startswith(tuple(prefixes)))
    ]


class Lines:
    """One line for the plan, for each start and for each end, on `stream`."""

    def planned(self, there: int, to_prove: int, secs: float, workers: int) -> None:
        before = f"{there} of them need none" if there else "none has a verdict"
        time_text = f"about {secs_text(secs)} by {workers} {'worker' if workers == 1 else 'workers'}"
        self._say(f"plan    {there + to_prove} graphs, {before}; {to_prove} to prove, {time_text}")

    def started(self, entry: Entry, secs: float) -> None:
        self._say(f"start   {entry.graph.name}  (about {secs_text(secs)})")

    def finished(self, found: Proven, done: int, total: int, secs_left: float) -> None:
        verdict = found.verdict
        what = verdict.text if verdict else f"{found.ending}: {found.reason}"
        took = f" in {secs_text(verdict.secs)}" if verdict else ""
        left = f", about {secs_text(secs_left)} left" if secs_left else ""
        self._say(f"done    {found.entry.graph.name}  {what}{took}  ({done} of {total}{left})")

    @staticmethod
    def _say(line: str) -> None:
        print(printable(line), flush=True, file=sys.stdout)


def show(found: Sequence[Proven]) -> None:
    """What is wrong, then how many ended how."""
    for each in found:
        if each.ending in ("disproven", "unproven", "failed", "skipped"):
            print(printable(f"{each.ending}  {each.entry.graph.name}  {each.reason}"))
    endings = ("proven", "disproven", "unproven", "failed", "skipped", "left")
    counts = {ending: sum(each.ending == ending for each in found) for ending in endings}
    emit_facts([(name, count_text(count)) for name, count in counts.items() if count or name == "proven"])
