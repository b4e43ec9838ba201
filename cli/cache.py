"""What the commands that look into a cache have in common: opening it, naming entries, reporting what was damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcache.errors import MissingGraphsError, StoreError, UsageError
from graphcache.key import SETTING
from graphcache.local.memo import memo_of
from graphcache.local.usage import Ledger, Usage
from graphcache.location import cache_dir
from graphcache.process.streams import report_warning
from graphcache.proof.verdict import Verdict
from graphcache.remote.opening import open_store
from graphcache.store.base import Entry, Fault
from graphcache.store.files import dangling_hint
from graphcache.store.find import KEY_DIGITS as KEY_DIGITS
from graphcache.store.foreign import is_foreign
from graphcache.store.local import LocalStore

if TYPE_CHECKING:
    from graphcache.remote.tier import Tier


def open_cache(option: str | None) -> LocalStore:
    """The cache that a command works on. Raises StoreError when there is none, or something else lies there."""
    root = cache_dir(option)
    if not root.is_dir():
        hint = dangling_hint(root) or "--cache names another; graphcache build makes one"
        raise StoreError(f"there is no cache at {root}", hint=hint)
    store = open_store(root)
    if is_foreign(store.layout):
        raise StoreError(f"{root} is no cache: something else lies there", hint="--cache names another")
    return store


def one_remote(options: Sequence[str], *, written: bool = False) -> Tier:
    """The remote that a command works on: the only one that is named. Raises UsageError, RemoteError; the latter also
    for one that is only read where it is to be `written`."""
    from graphcache.remote.files import open_files
    from graphcache.remote.tier import Tier
    from graphcache.remote.url import VARIABLE, RemoteError, remote_urls

    urls = remote_urls(options)
    if len(urls) != 1:
        named = f"{len(urls)} remotes are named: {', '.join(map(str, urls))}" if urls else "no remote is named"
        raise UsageError(named, hint=f"give one --remote, such as s3://bucket/graphcache; {VARIABLE} may name it too")
    if written and not urls[0].writable:
        raise RemoteError(f"{urls[0]} can only be read", hint="name the s3, gs or file URL behind it")
    return Tier(open_files(urls[0]))


def entries_of_manifests(store: LocalStore, manifests: Sequence[Path], *, complete: bool = False) -> list[Entry]:
    """The entries of the keys that manifests name; all without any.

    complete: raise MissingGraphsError when the cache lacks one of them
    """
    entries = list(store.entries())
    if not manifests:
        return entries
    # Only some calls need to know manifests.
    from graphcache.manifest.file import read_manifest

    recorded = [graph for path in manifests for graph in read_manifest(path).graphs if graph.key is not None]
    named = {graph.key.digest: graph.graph.name for graph in recorded if graph.key is not None}
    found = [entry for entry in entries if entry.key.digest in named]
    lacking = sorted(set(named) - {entry.key.digest for entry in found})
    if complete and lacking:
        raise MissingGraphsError(
            f"{len(lacking)} of {len(named)} artifacts are not in the cache, first {named[lacking[0]]}",
            hint=f"graphcache build --shapes-from {manifests[0]} compiles them, graphcache pull may have them",
        )
    return found


def usage_of(store: LocalStore) -> dict[str, Usage]:
    """Uses by key digest, as far as this machine remembers them."""
    with memo_of(store.root) as memo:
        return Ledger(memo).usage()


def toolchain_text(parts: Mapping[str, str]) -> str:
    """What tells most toolchains apart, in a few words: `2026.4.0, fusion 8, tactic compute-bound`."""
    words = [parts.get("furiosa-torch", "")]
    words += [f"fusion {parts['fusion']}"] if "fusion" in parts else []
    words += [f"{name.removeprefix(SETTING)} {parts[name]}" for name in sorted(parts) if name.startswith(SETTING)]
    return ", ".join(word for word in words if word)


def by_name(entries: Iterable[Entry]) -> list[Entry]:
    """As people look for them: by catalog, graph, then key."""
    return sorted(entries, key=lambda entry: (entry.graph.catalog, entry.graph.name, entry.key.digest))


def entry_json(entry: Entry, verdict: Verdict | None = None) -> dict[str, Any]:
    """`verdict`: on the entry's artifact; None when nobody tried to prove it."""
    return {**entry.as_json(), "key_digest": entry.key.digest, "proof": verdict and verdict.as_json()}


def proof_state(verdict: Verdict | None) -> str:
    """`proven`, `disproven` or `unproven`."""
    return "unproven" if verdict is None else verdict.state


def warn_of_faults(faults: Iterable[Fault]) -> None:
    for fault in faults:
        report_warning("corrupt", fault_text(fault))


def warn_of_troubles(store: LocalStore) -> None:
    """Warn of remotes that failed."""
    for trouble in store.troubles:
        report_warning("remote", trouble)


def fault_text(fault: Fault) -> str:
    return f"{fault.path}: {fault.problem}" + (f"; now {fault.quarantined}" if fault.quarantined else "")
