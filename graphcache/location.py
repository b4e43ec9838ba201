"""Where the cache lies. Builder and trainer resolve it here, so that they cannot disagree."""

from __future__ import annotations

import os
from pathlib import Path

from graphcache.digest import checksum
from graphcache.errors import StoreError

VARIABLE = "GRAPHCACHE_DIR"

# File systems of Linux on which SQLite's locks cannot be trusted.
_NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "gluster", "beegfs", "gpfs", "afs", "9p", "fuse.")


def cache_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """The cache's folder: `option` (--cache), else $GRAPHCACHE_DIR, else `graphcache` under the XDG cache folder.

    Empty strings count as not given. The folder need not exist. Raises StoreError when nothing names one.
    """
    chosen = (option and os.fspath(option)) or os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _xdg_cache() / "graphcache"


def local_dir(cache: Path) -> Path:
    """Where what can be thrown away (memo, usage ledger: SQLite) of the cache at `cache` is kept.

    Inside the cache when that is a local disk that we may write to; else in the XDG cache folder under a name made
    from the cache's real path, since SQLite needs locks that a network file system may only pretend to have.
    """
    nearest = next(p for p in (cache, *cache.parents) if p.exists())
    if os.access(nearest, os.W_OK | os.X_OK) and not _on_network(nearest):
        return cache / "local"
    return _xdg_cache() / "graphcache" / "local" / checksum(os.fsencode(cache.resolve()))


def _xdg_cache() -> Path:
    # The XDG specification says that a relative path is to be ignored.
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise StoreError(
            "no cache folder: neither --cache, GRAPHCACHE_DIR, XDG_CACHE_HOME nor HOME is set",
            hint=f"set {VARIABLE} to a folder that builder and trainer both see",
        ) from error


def _on_network(path: Path) -> bool:
    """Whether the mount that holds `path` is a network file system; False where /proc does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    real = os.path.realpath(path)
    holding = ("", "")
    for line in lines:
        mount, kind = line.split(" ")[4], line.split(" - ", 1)[1].split(" ")[0]
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(holding[0]):
            holding = (mount, kind)
    return holding[1].startswith(_NETWORK)
