"""Where the cache lies. Builder and trainer resolve it here, so that they cannot disagree."""

from __future__ import annotations

import os
import re
from pathlib import Path

from graphcache.config_file import read_config
from graphcache.digest import checksum
from graphcache.errors import StoreError
from graphcache.store.files import check_writable
from graphcache.store.layout import Layout

VARIABLE = "GRAPHCACHE_DIR"

# File systems of Linux on which SQLite's locks cannot be trusted.
_NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "gluster", "beegfs", "gpfs", "afs", "9p", "fuse.")


def cache_dir(option: str | os.PathLike[str] | None = None) -> Path:
    """The cache's folder: `option` (--cache), else $GRAPHCACHE_DIR, else the config file's, else `graphcache` under the
    XDG cache folder.

    Empty strings count as not given. The folder need not exist. Raises StoreError when nothing names one, ConfigError.
    """
    chosen, source = _named(option)
    if chosen:
        _refuse_odd(chosen, source)
        return (_of_user(chosen) if chosen.startswith("~") else Path(chosen)).absolute()
    xdg_cache = _xdg_cache()
    if xdg_cache is None:
        raise StoreError(
            "no cache folder: neither --cache, GRAPHCACHE_DIR, XDG_CACHE_HOME nor HOME names one by its whole path",
            hint=f"set {VARIABLE} to a folder that builder and trainer both see",
        )
    return xdg_cache / "graphcache"


def cache_source(option: str | os.PathLike[str] | None = None) -> str:
    """What names the folder that `cache_dir` gives, for people."""
    return _named(option)[1]


def _named(option: str | os.PathLike[str] | None) -> tuple[str, str]:
    """The folder as it is named, and by what; empty for neither option, environment nor config file."""
    if option and os.fspath(option):
        return os.fspath(option), "--cache"
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE], VARIABLE
    config = read_config()
    return (config.cache, str(config.path)) if config.cache else ("", "the XDG cache folder")


def local_dir(cache: Path, *, building: bool = False, read_only: bool = False) -> Path | None:
    """Where what can be thrown away (memo, usage ledger: SQLite) of the cache at `cache` is kept.

    Inside the cache when that is a local disk that we may write to; else in the XDG cache folder under a name made
    from the cache's real path, since SQLite needs locks that a network file system may only pretend to have. A folder
    that is no store, named by mistake perhaps, is left as it is unless the caller is `building` one there; so is any
    that is used `read_only`. None where that leaves no place, for want of a home: it is kept nowhere then.
    """
    if not read_only and _is_writable(cache) and not _on_network(cache) and (building or Layout(cache).is_store()):
        return cache / "local"
    xdg_cache = _xdg_cache()
    if xdg_cache is None or (read_only and xdg_cache / "graphcache" == cache):
        return None
    return xdg_cache / "graphcache" / "local" / checksum(os.fsencode(os.path.realpath(cache)))


def _refuse_odd(path: str, source: str) -> None:
    """Quotes and blanks that a shell, a .env file or YAML was meant to take away would name a folder of their own."""
    if path != path.strip() or path[0] in "\"'" or path[-1] in "\"'":
        raise StoreError(
            f"{source} is {path!r}, with a quote or blank at an end that is hardly part of a folder's name",
            hint="give the path without; quotes belong to the shell, and not to the value",
        )


def _is_writable(folder: Path) -> bool:
    try:
        check_writable(folder)
    except OSError:
        return False
    return True


def _of_user(path: str) -> Path:
    """`~/cache` or `~user/cache` in full."""
    found = os.path.expanduser(path)
    if not os.path.isabs(found):
        raise StoreError(f"cannot tell whose home {path!r} means", hint="give the cache's whole path")
    return Path(found)


def _xdg_cache() -> Path | None:
    """None for a process without a home: in a container, of a user that has no line in passwd."""
    # The XDG specification says that a relative path is to be ignored; so is HOME here, or builder and trainer would
    # look for the cache in their own current folders.
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    home = os.path.expanduser("~")
    return Path(home) / ".cache" if os.path.isabs(home) else None


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
