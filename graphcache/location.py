"""Where the cache lies. Builder and trainer resolve it here, so that they cannot disagree."""

from __future__ import annotations

import os
import re
from pathlib import Path

from graphcache.digest import checksum
from graphcache.errors import StoreError
from graphcache.store.layout import Layout

VARIABLE = "GRAPHCACHE_DIR"

# File systems of Linux on which SQLite's locks cannot be trusted.
_NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "gluster", "beegfs", "gpfs", "afs", "9p", "fuse.")


def cache_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """The cache's folder: `option` (--cache), else $GRAPHCACHE_DIR, else `graphcache` under the XDG cache folder.

    Empty strings count as not given. The folder need not exist. Raises StoreError when nothing names one.
    """
    chosen = (option and os.fspath(option)) or os.environ.get(VARIABLE)
    if not chosen:
        return _xdg_cache() / "graphcache"
    return (_of_user(chosen) if chosen.startswith("~") else Path(chosen)).absolute()


def local_dir(cache: Path, *, building: bool = False) -> Path:
    """Where what can be thrown away (memo, usage ledger: SQLite) of the cache at `cache` is kept.

    Inside the cache when that is a local disk that we may write to; else in the XDG cache folder under a name made
    from the cache's real path, since SQLite needs locks that a network file system may only pretend to have. A folder
    that is no store, named by mistake perhaps, is left as it is unless the caller is `building` one there.
    """
    nearest = next(p for p in (cache, *cache.parents) if p.exists())
    writable = os.access(nearest, os.W_OK | os.X_OK) and not _on_network(nearest)
    if writable and (building or Layout(cache).is_store()):
        return cache / "local"
    return _xdg_cache() / "graphcache" / "local" / checksum(os.fsencode(os.path.realpath(cache)))


def _of_user(path: str) -> Path:
    """`~/cache` or `~user/cache` in full."""
    found = os.path.expanduser(path)
    if not os.path.isabs(found):
        raise StoreError(f"cannot tell whose home {path!r} means", hint="give the cache's whole path")
    return Path(found)


def _xdg_cache() -> Path:
    # The XDG specification says that a relative path is to be ignored; so is HOME here, or builder and trainer would
    # look for the cache in their own current folders.
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise StoreError(
            "no cache folder: neither --cache, GRAPHCACHE_DIR, XDG_CACHE_HOME nor HOME names one by its whole path",
            hint=f"set {VARIABLE} to a folder that builder and trainer both see",
        )
    return Path(home) / ".cache"


def _on_network(path: Path) -> bool:
    """Whether the mount that holds `path` is a network file system; False where /proc does not say."""
    try:
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).strip().split("\n")
    except OSError:
        return False
    real = os.path.realpath(path)
    holding = ("", "")
    for line in lines:
        mount, kind = _plain(line.split(" ")[4]), line.split(" - ", 1)[1].split(" ")[0]
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(holding[0]):
            holding = (mount, kind)
    return holding[1].startswith(_NETWORK)


def _plain(mount: str) -> str:
    """A path of mountinfo, where the kernel writes a space, tab, newline and backslash as `\\040` and so on."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount)
