"""What a store holds, and what every store can do: entries, failures, faults, and the `Store` protocol.

An entry and a failure are each one small file that covers itself: canonical JSON with its own SHA-256 inside, which
must come out the same, byte for byte, when it is encoded again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from graphcache.artifact import Artifact
from graphcache.digest import canonical_json, checksum, json_sha256, sha256_hex
from graphcache.errors import CorruptError
from graphcache.graph import Graph
from graphcache.key import Key

ENTRY_FORMAT = "graphcache-entry-1"
FAILURE_FORMAT = "graphcache-failure-1"

_TIME = re.compile(r"[1-9]\d{3}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)


@dataclass(frozen=True)
class Cost:
    """What one compile took: elapsed and CPU seconds, and the compiler's highest resident memory."""

    wall_secs: float
    cpu_secs: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Facts:
    """What a builder knows about an artifact besides its bytes.

    graph:       the graph it was compiled for; another graph with the same program shares the entry
    estimate_ns: the compiler's own estimate of device time for a call; None when it gave none
    """

    graph: Graph
    cost: Cost
    estimate_ns: int | None = None


@dataclass(frozen=True)
class Object:
    """The artifact's bytes as an entry names them: SHA-256 is the name, XXH3-128 the check of every load."""

    sha256: str
    xxh3_128: str
    size_bytes: int

    def __post_init__(self) -> None:
        # The digest becomes a file name, so what an entry may say here is nothing but a digest.
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"an object is named by a SHA-256 of 64 hexadecimal digits, not {self.sha256!r}")

    @classmethod
    def of(cls, data: bytes) -> Object:
        return cls(sha256_hex(data), checksum(data), len(data))


@dataclass(frozen=True)
class Entry:
    """That `key` compiles to `object`. `created` is UTC, `2026-11-29T15:04:05Z`."""

    key: Key
    object: Object
    facts: Facts
    created: str

    def __post_init__(self) -> None:
        if not _TIME.fullmatch(self.created):
            raise ValueError(f"an entry's time is like 2026-11-29T15:04:05Z, not {self.created!r}")

    @property
    def program(self) -> str:
        return self.key.program

    @property
    def graph(self) -> Graph:
        return self.facts.graph

    @property
    def cost(self) -> Cost:
        return self.facts.cost

    @property
    def artifact_digest(self) -> str:
        return self.object.sha256

    @property
    def size_bytes(self) -> int:
        return self.object.size_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "key": dict(self.key.parts),
            "object": asdict(self.object),
            "graph": self.facts.graph.as_json(),
            "cost": asdict(self.facts.cost),
            "estimate_ns": self.facts.estimate_ns,
            "created": self.created,
        }

    def encode(self) -> bytes:
        return seal(ENTRY_FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """The entry in `data`. Raises CorruptError unless every byte is as `encode` writes it."""
        value = unseal(ENTRY_FORMAT, data)
        try:
            facts = Facts(Graph.from_json(value["graph"]), Cost(**value["cost"]), value["estimate_ns"])
            return cls(Key(value["key"]), Object(**value["object"]), facts, value["created"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"an entry of {len(data)} bytes lacks a field: {error}") from error


@dataclass(frozen=True)
class Failure:
    """A compile that failed. Never an entry, so nothing can be served from it.

    log:       where the compiler's output is, relative to the store's folder
    retryable: whether the same compile could succeed: true for a killed job or a full disk, false for a graph that the
               compiler refuses. A retryable failure is news, never a reason to leave a graph out of the next build.
    """

    key: Key
    graph: str
    cause: str
    log: str
    retryable: bool
    created: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": dict(self.key.parts)}

    def encode(self) -> bytes:
        return seal(FAILURE_FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        value = unseal(FAILURE_FORMAT, data)
        try:
            return cls(**{**value, "key": Key(value["key"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"a failure record of {len(data)} bytes lacks a field: {error}") from error


@dataclass(frozen=True)
class Fault:
    """Something in a store that is not as it was written.

    path and set_aside are relative to the store's folder; set_aside is None where the file was left (a store that we
    may not write to, or nothing there to move).
    """

    path: str
    problem: str
    set_aside: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Store(Protocol):
    """What build, diff, verify and the trainer need of a store.

    Whatever is read is checked; what does not pass is added to `faults`, moved aside where that is possible, and
    treated as absent.
    """

    @property
    def faults(self) -> list[Fault]:
        """What was found so far that is not as it was written, in the order of finding."""

    def lookup(self, key: Key) -> Entry | None:
        """The entry of `key`, when all its parts are equal and its object passes its checksum."""

    def by_program(self, program: str) -> list[Entry]:
        """Entries of `program` for whichever toolchain, sorted by key digest. Their objects are not read."""

    def entries(self) -> Iterator[Entry]:
        """All entries, sorted by program and key digest. Their objects are not read."""

    def open(self, entry: Entry) -> Artifact:
        """The checked artifact of `entry`. Raises CorruptError when it is bad or gone."""

    def commit(self, key: Key, data: bytes, facts: Facts) -> Entry:
        """Adds the artifact `data` under `key`; returns the entry that is in the store afterwards.

        Raises CorruptError for data that is no artifact of `key`, StoreError when it cannot be written.
        """

    def failure(self, key: Key) -> Failure | None:
        """The last failed compile of `key` since its last commit."""

    def record_failure(self, failure: Failure) -> None: ...

    def clear_failure(self, key: Key) -> None: ...

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        """Says whether nobody else is known to compile `key`. Only saves duplicate work."""


def seal(fmt: str, body: Mapping[str, Any]) -> bytes:
    """`body` as a line of canonical JSON with `format` and the SHA-256 of all of it."""
    whole = {**body, "format": fmt}
    return canonical_json({**whole, "sha256": json_sha256(whole)}) + b"\n"


def unseal(fmt: str, data: bytes) -> dict[str, Any]:
    """What was sealed, without `format` and `sha256`. Raises CorruptError unless it is sealed byte for byte so."""
    try:
        value = json.loads(data)
        body = {name: value[name] for name in value if name not in ("format", "sha256")}
        if seal(value["format"], body) != data:
            raise ValueError("its SHA-256 does not match")
        if value["format"] != fmt:
            raise ValueError(f"its format is {value['format']!r}, this program reads {fmt!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"a record of {len(data)} bytes: {error}") from error
    return body
