"""Settings that a machine or a person keeps in a file: the cache, remotes, the trust file.

    cache = "/data/graphcache"
    remote = ["/shared/graphcache", "s3://bucket/graphcache"]
    trust = "/etc/graphcache/trust.json"

The environment goes before it, an option before both. The file is what GRAPHCACHE_CONFIG names, else
graphcache/graphcache.toml under the XDG config folder, if it is there.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError

VARIABLE = "GRAPHCACHE_CONFIG"
NAMES = ("cache", "remote", "trust")
HINT = f'its settings are {", ".join(NAMES)}, such as cache = "/data/graphcache"'


class ConfigError(GraphcacheError):
    """A config file that cannot be read, that others can write to, or that says what nobody understands."""

    name = "config"


@dataclass(frozen=True)
class Config:
    """What the file at `path` says; None where it says nothing. path: None where there is no file."""

    path: Path | None = None
    cache: str | None = None
    remote: tuple[str, ...] | None = None
    trust: str | None = None


def read_config() -> Config:
    """The settings in the config file; none without one. Raises ConfigError."""
    path = _place()
    if path is None:
        return Config()
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {path} cannot be read: {error}", hint=f"or unset {VARIABLE}") from error
    return _parse(path, text)


def _place() -> Path | None:
    """Where the file is. One that is named has to be there."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.isabs(named):
            raise ConfigError(f"{VARIABLE} is {named!r}, not a whole path", hint="or the current folder would decide")
        return Path(named)
    home = os.path.expanduser("~")
    # As for the cache: a relative path is ignored.
    given = os.environ.get("XDG_CONFIG_HOME", "")
    folder = given if os.path.isabs(given) else os.path.join(home, ".config")
    path = Path(folder, "graphcache", "graphcache.toml")
    return path if os.path.isabs(folder) and path.exists() else None


def _check_private(path: Path, status: os.stat_result) -> None:
    """Who can write to the file chooses whom this user trusts."""
    if not stat.S_ISREG(status.st_mode):
        # Such as /dev/null, for no settings.
        return
    mode = stat.filemode(status.st_mode)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"the config file {path} is of user {status.st_uid}, mode {mode}: others can write it",
            hint="chmod go-w it; it has to be of this user or root",
        )


def _parse(path: Path, text: str) -> Config:
    import tomllib

    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint=HINT) from error
    unknown = sorted(set(found) - set(NAMES))
    if unknown:
        raise ConfigError(f"{path} sets {', '.join(map(repr, unknown))}, which nothing reads", hint=HINT)
    return Config(
        path=path,
        cache=_folder(path, "cache", found.get("cache")),
        remote=_urls(path, found.get("remote")),
        trust=_folder(path, "trust", found.get("trust")),
    )


def _folder(path: Path, name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not os.path.isabs(os.path.expanduser(value)):
        raise ConfigError(f"{path}: {name} is {value!r}, not a whole path", hint=HINT)
    return os.path.expanduser(value)


def _urls(path: Path, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise ConfigError(f"{path}: remote is {type(value).__name__}, not a URL or a list of URLs", hint=HINT)
    return tuple(urls)
