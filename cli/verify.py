"""`graphcache verify`: every byte against its digest; optionally rebuilds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from cli.cache import fault_text, open_cache
from cli.options import cache_option, cli_command, json_option, manifests_option
from cli.render import emit_facts, emit_json, emit_table
from graphcache.build.build import BuildOptions
from graphcache.catalog import may_be_called
from graphcache.errors import CorruptError
from graphcache.local.memo import Memo, memo_of
from graphcache.manifest.file import read_manifest
from graphcache.manifest.manifest import Manifest, OtherBytes, other_bytes
from graphcache.process.shown import bytes_text, count_text, printable
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import Report, verify
from graphcache.verify.rebuild import rebuilds
from graphcache.verify.verdict import Verdict


@dataclass(frozen=True)
class Compared:
    """A manifest that names `artifacts` artifacts; those of `compared` keys were checked, and `other` are not the same
    bytes."""

    file: str
    artifacts: int
    compared: int
    other: tuple[OtherBytes, ...]

    @classmethod
    def of(cls, path: Path, manifest: Manifest, found: Mapping[str, str]) -> Compared:
        """found: artifact digests by key digest"""
        named = manifest.artifacts
        return cls(str(path), len(named), len(named.keys() & found.keys()), tuple(other_bytes(manifest, found)))


@cli_command(
    "verify",
    examples=(
        "graphcache verify",
        "graphcache verify 3f2a91c04b7e --rebuild",
        "graphcache verify --rebuild --json",
        "graphcache verify --manifest cache_manifests/llama-3.1-8b-adamw.json",
    ),
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--rebuild", is_flag=True, help="Compile again and compare the bytes.")
@manifests_option("Also compare the artifacts with the digests in this manifest; may be given several times.")
@cache_option
@json_option
def command(keys: tuple[str, ...], rebuild: bool, manifests: tuple[Path, ...], cache: str | None, as_json: bool) -> int:
    """Check every byte in the cache; optionally rebuilds. Exit code 1 when anything is wrong.

    Without KEY, all entries and all files. KEY is a key's digest, or its first digits. Corrupt files are named and
    quarantined, so that the next build compiles them again. --manifest finds forged bytes, which pass every check of
    the cache itself. --rebuild needs the vendor's compiler of the version that made an entry, and says which entries it
    skips. `graphcache prove` checks what artifacts compute.
    """
    recorded = {path: read_manifest(path) for path in manifests}
    store = open_cache(cache)
    report = verify(store, keys)
    found = {entry.key.digest: entry.artifact_digest for entry in report.entries}
    compared = [Compared.of(path, manifest, found) for path, manifest in recorded.items()]
    other = [named for one in compared for named in one.other]
    if not as_json:
        _show(report, compared)
    verdicts = _rebuild(store, report.entries, quiet=as_json) if rebuild else []
    if as_json:
        facts = {"rebuild": [verdict.as_json() for verdict in verdicts]} if rebuild else {}
        counts = [{"file": one.file, "artifacts": one.artifacts, "compared": one.compared} for one in compared]
        named = {"manifests": counts, "other_bytes": [asdict(each) for each in other]}
        emit_json({"cache": str(store.root), **_as_json(report), **named, **facts})
    wrong = [verdict for verdict in verdicts if verdict.state == "failed"]
    return 0 if report.sound and not other and not wrong else CorruptError.exit_code


def _rebuild(store: LocalStore, entries: Sequence[Entry], *, quiet: bool) -> list[Verdict]:
    """Sorted by graph; each is printed when it is found, since it takes seconds."""
    found = []
    with memo_of(store.root) as memo:
        for verdict in _rebuilt(entries, memo):
            found.append(verdict)
            if not quiet:
                line = f"rebuild  {verdict.state:<7}  {verdict.entry.graph.name}  {verdict.detail}"
                print(printable(line), flush=True)
    return sorted(found, key=lambda v: (v.entry.graph.name, v.entry.key.digest))


def _rebuilt(entries: Sequence[Entry], memo: Memo) -> Iterator[Verdict]:
    """Calls the function that an entry names, and others may have written the entry."""
    for entry in entries:
        if not may_be_called(entry.graph):
            detail = f"{entry.graph.function} is no function beside an installed catalog, so it is not run"
            yield Verdict(entry, "skipped", detail)
    yield from rebuilds([entry for entry in entries if may_be_called(entry.graph)], memo, BuildOptions())


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "faults": [fault.as_json() for fault in report.faults],
        "orphans": list(report.orphans),
        "strays": list(report.strays),
        "temporaries": list(report.temporaries),
        "quarantined": report.quarantined,
        "entries": len(report.entries),
        "size_bytes": report.size_bytes,
    }


def _show(report: Report, compared: Sequence[Compared]) -> None:
    for fault in report.faults:
        print(f"corrupt  {fault_text(fault)}")
    for named in (named for one in compared for named in one.other):
        print(printable(f"other bytes  {named}"))
    emit_table(
        ("leftover", "file"),
        [(what, path) for what in ("orphans", "strays", "temporaries") for path in getattr(report, what)],
    )
    emit_facts(
        [
            *(("manifest", f"{one.file}: {one.compared} of {one.artifacts} compared") for one in compared),
            *([("quarantined", f"{count_text(report.quarantined)} now or before")] if report.quarantined else []),
            ("corrupt", count_text(len(report.faults))),
            ("entries", f"{count_text(len(report.entries))} whole"),
            ("bytes", f"{count_text(report.size_bytes)} ({bytes_text(report.size_bytes)})"),
        ]
    )
