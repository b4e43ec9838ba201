"""Where a remote is: a URL, or a folder. A URL never holds a secret: it is in process lists, logs and reports."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from graphcache.config_file import read_config
from graphcache.errors import GraphcacheError, UsageError

VARIABLE = "GRAPHCACHE_REMOTE"

# Schemes that can be written, and those that are only read.
WRITABLE = ("s3", "gs", "memory")
READ_ONLY = ("http", "https")

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL in the environment, or ~/.aws",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS in the environment",
}


class RemoteError(GraphcacheError):
    """A remote that does not answer, refuses, or cannot be used here."""

    name = "remote"


@dataclass(frozen=True)
class RemoteUrl:
    """One remote. scheme: `file` for a folder, whose `place` is its path; else `place` is what follows `scheme://`."""

    scheme: str
    place: str

    @property
    def writable(self) -> bool:
        return self.scheme not in READ_ONLY

    def __str__(self) -> str:
        return self.place if self.scheme == "file" else f"{self.scheme}://{self.place}"


def parse(text: str) -> RemoteUrl:
    """The remote that `text` names. Raises UsageError, which never repeats what could be a secret."""
    if "://" not in text:
        return RemoteUrl("file", _folder(text))
    parts = urlsplit(text)
    known = (*WRITABLE, *READ_ONLY, "file")
    if parts.scheme not in known:
        raise UsageError(f"a remote's scheme is one of {', '.join(known)}, not {parts.scheme!r}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        where = _CREDENTIALS.get(parts.scheme, "the environment or ~/.netrc")
        raise UsageError(
            f"a {parts.scheme} remote's URL has a user, a query or a fragment, and everyone can read a command line",
            hint=f"leave them out; credentials come from {where}",
        )
    if parts.scheme == "file":
        if parts.netloc:
            raise UsageError(f"file://{parts.netloc} names a host; a folder has three slashes: file:///shared/cache")
        return RemoteUrl("file", _folder(parts.path))
    if not parts.netloc:
        raise UsageError(f"{text!r} names no bucket or host")
    return RemoteUrl(parts.scheme, (parts.netloc + parts.path).rstrip("/"))


def remote_urls(options: Sequence[str]) -> tuple[RemoteUrl, ...]:
    """The remotes to look into, in this order: the options given, else those in $GRAPHCACHE_REMOTE, apart by spaces,
    else the config file's.

    Raises UsageError, ConfigError.
    """
    return tuple(dict.fromkeys(parse(text) for text in named_remotes(options)[0]))


def named_remotes(options: Sequence[str] = ()) -> tuple[list[str], str]:
    """These remotes as they are named, and by what, for people. A variable that is set to nothing names none."""
    if options:
        return list(options), "--remote"
    if VARIABLE in os.environ:
        try:
            return shlex.split(os.environ[VARIABLE]), VARIABLE
        except ValueError as error:
            raise UsageError(f"{VARIABLE} cannot be split into URLs: {error}") from error
    config = read_config()
    return list(config.remote or ()), str(config.path) if config.remote else "nothing"


def _folder(text: str) -> str:
    path = os.path.expanduser(text)
    if not os.path.isabs(path):
        raise UsageError(
            f"{text!r} is neither a URL nor a whole path", hint="such as s3://bucket/graphcache or /shared/graphcache"
        )
    return os.path.normpath(path)
