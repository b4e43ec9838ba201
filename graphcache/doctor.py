"""What a build, and a run on a card, would find on this machine; what to do about what is not there.

Nothing is compiled, no card is opened, no torch is imported here. Levels: `ok`; `note`, something to know that stops
nothing (a build node has no card); `bad`, builds do not work like this.
"""

from __future__ import annotations

import glob
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from graphcache.build.build import default_jobs
from graphcache.config_file import read_config
from graphcache.errors import GraphcacheError
from graphcache.local.memo import Memo, memo_of
from graphcache.location import cache_dir, cache_source
from graphcache.process.limits import available_cpus, available_memory_bytes
from graphcache.process.shown import bytes_text
from graphcache.remote.url import named_remotes, parse
from graphcache.runtime.versions import ask_revision, known_revision, torch_version, vendor_version
from graphcache.store.files import check_writable
from graphcache.store.foreign import is_foreign
from graphcache.store.local import LocalStore
from graphcache.toolchain.cross_gcc import cross_gcc_path, cross_gcc_version
from graphcache.trust.guard import named_trust
from graphcache.vendor import layouts as vendor

# A few hundred artifacts, and what a compiler writes while it runs.
FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One fact. `hint`: what to do; empty when there is nothing to do."""

    name: str
    level: Literal["ok", "note", "bad"]
    fact: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(cache: str | None) -> list[Finding]:
    """All findings, in an order in which each can rest on those before it."""
    root = cache_dir(cache)
    with memo_of(root) as memo:
        return [
            *_guarded("machine", _machine),
            *_guarded("vendor", lambda: _vendor(memo)),
            *_guarded("torch", _torch),
            *_guarded("cross gcc", lambda: _cross_gcc(memo)),
            *_guarded("cards", _cards),
            *_guarded("settings", lambda: _settings(cache, root)),
            *_guarded("cache", lambda: _cache(root)),
            *_guarded("memo", lambda: _memo(memo)),
            *_guarded("vendor cache", _vendor_cache),
        ]


def _guarded(name: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What `look` finds; an error of ours is a finding, with its hint."""
    try:
        return list(look())
    except GraphcacheError as error:
        return [Finding(name, "bad", error.message, error.hint)]


def _machine() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    what = f"{platform.system()} {platform.machine()}, Python {python}"
    limits = f"{available_cpus()} CPUs, {bytes_text(available_memory_bytes())}: {default_jobs()} compiles at once"
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        yield Finding("machine", "ok", f"{what}; {limits}")
    else:
        yield Finding("machine", "bad", what, "the vendor's compiler exists for Linux on x86-64 alone")


def _vendor(memo: Memo) -> Iterator[Finding]:
    version = vendor_version()
    revision = known_revision(memo) or ask_revision(memo)
    yield Finding("vendor", "ok", f"furiosa-torch {version}, compiler {revision}")


def _torch() -> Iterator[Finding]:
    yield Finding("torch", "ok", f"torch {torch_version()}")


def _cross_gcc(memo: Memo) -> Iterator[Finding]:
    yield Finding("cross gcc", "ok", f"{cross_gcc_path()} {cross_gcc_version(memo)}")


def _cards() -> Iterator[Finding]:
    nodes = sorted(glob.glob(vendor.CARD_NODES))
    if nodes:
        yield Finding("cards", "ok", ", ".join(nodes))
    else:
        folder = os.path.dirname(vendor.CARD_NODES)
        yield Finding(
            "cards", "note", f"no device node {vendor.CARD_NODES}", f"builds need none; a pod on a card has {folder}"
        )


def _settings(cache: str | None, root: Path) -> Iterator[Finding]:
    """Where each setting comes from: what builder and trainer disagree about is most often that."""
    remotes, of_remotes = named_remotes()
    trust, of_trust = named_trust()
    config = read_config().path
    yield Finding("settings", "ok", f"config file: {config or 'there is none'}")
    yield Finding("settings", "ok", f"cache: {root}, by {cache_source(cache)}")
    # Parsed, so that no secret in a URL is shown.
    shown = " ".join(str(parse(remote)) for remote in remotes)
    yield Finding("settings", "ok", f"remote: {shown}, by {of_remotes}" if remotes else "remote: none")
    yield Finding("settings", "ok", f"trust file: {trust}, by {of_trust}" if trust else "trust file: none")


def _cache(root: Path) -> Iterator[Finding]:
    nearest = next(place for place in (root, *root.parents) if place.exists())
    usage = shutil.disk_usage(nearest)
    free = f"{bytes_text(usage.free)} free"
    layout = LocalStore(root).layout
    foreign = root.is_dir() and is_foreign(layout)
    if foreign:
        found = f"{root} is no cache, something else lies there; {free}"
    elif not root.exists():
        found = f"{root} is not there yet; {free}"
    else:
        found = f"{root}, artifacts: {sum(1 for _ in layout.object_files())}; {free}"
    try:
        check_writable(root)
    except OSError as error:
        fact = f"{found}; not writable: {error.strerror}"
        yield Finding("cache", "bad", fact, "--cache or GRAPHCACHE_DIR name another folder")
        return
    if usage.free < FREE_BYTES:
        yield Finding("cache", "bad", found, "free some space, or run graphcache gc --max-size SIZE --yes")
    elif foreign:
        yield Finding("cache", "note", found, "a build would write into it; --cache or GRAPHCACHE_DIR name another")
    else:
        yield Finding("cache", "ok", found)


def _memo(memo: Memo) -> Iterator[Finding]:
    if memo.trouble:
        yield Finding("memo", "note", memo.trouble, "nothing depends on it; planning is slower without")
    else:
        yield Finding("memo", "ok", str(memo.folder))


def _vendor_cache() -> Iterator[Finding]:
    """The vendor's own cache: builds do not use it, eager ops and torch.compile would."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = Path(base, vendor.DEFAULT_CACHE)
    if place.exists():
        hint = "builds do not use it; it does not check what it reads, so do not trust it either"
        yield Finding("vendor cache", "note", f"{place} is there, entries: {len(os.listdir(place))}", hint)
    else:
        yield Finding("vendor cache", "ok", f"{place} is not there; builds use private folders")
