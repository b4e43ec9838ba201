"""The log of builds: who compiled what, when, with which toolchain. A record a build, and a file a record.

Lines of one file would do where appending is atomic. On NFS it is not: two hosts would write over each other. A build
writes its own file alone, anew after each graph, so what is killed has logged what it committed.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from graphcache.errors import CorruptError
from graphcache.store import records

FORMAT = "graphcache-build-1"
FOLDER = "builds"
# Of one record, which stays far below what is read of a file; a longer build goes on in another.
MOST_GRAPHS = 1000


@dataclass(frozen=True)
class Built:
    """A graph that a build compiled, or failed to. key, artifact: digests; None where there is none."""

    graph: str
    catalog: str
    state: Literal["compiled", "failed"]
    key: str | None
    artifact: str | None

    def __post_init__(self) -> None:
        records.text("graph", self.graph)
        records.text("catalog", self.catalog)
        if self.state not in ("compiled", "failed"):
            raise ValueError(f"state is {self.state!r}")
        for name, value in (("key", self.key), ("artifact", self.artifact)):
            if value is not None:
                records.digits(name, value, 64)


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """One build. id: 64 random digits; user, host: as the system names them; started, ended: UTC, the latter that of
    the last graph so far; toolchain: the parts of the keys."""

    id: str
    user: str
    host: str
    started: str
    ended: str
    toolchain: Mapping[str, str]
    built: tuple[Built, ...] = ()

    def __post_init__(self) -> None:
        records.digits("id", self.id, 64)
        for name in ("user", "host"):
            records.text(name, getattr(self, name))
        records.moment("started", self.started)
        records.moment("ended", self.ended)
        records.texts("toolchain", self.toolchain)

    @classmethod
    def begin(cls, toolchain: Mapping[str, str]) -> BuildRecord:
        """A new one of this process."""
        now, host = utc_now(), socket.gethostname()
        return cls(id=os.urandom(32).hex(), user=user(), host=host, started=now, ended=now, toolchain=dict(toolchain))

    def with_built(self, built: Built) -> BuildRecord:
        """The same with one more graph; another record when this one is full."""
        before = self if len(self.built) < MOST_GRAPHS else replace(self, id=os.urandom(32).hex(), built=())
        return replace(before, ended=utc_now(), built=(*before.built, built))

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.built)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "toolchain": dict(self.toolchain), "built": [asdict(each) for each in self.built]}

    def encode(self) -> bytes:
        return records.seal(FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> BuildRecord:
        value = records.unseal(FORMAT, data)
        try:
            return cls(**{**value, "built": tuple(Built(**each) for each in value["built"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"a build's record of {len(data)} bytes: {error}") from error


def user() -> str:
    """The name of this process's user; its number where it has none, as in a container."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
