"""What a store holds, and what every store can do: entries, failures, faults, and the `Store` protocol.

An entry and a failure are each one small file that covers itself (`graphcache.store.records`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from graphcache.artifact import Artifact
from graphcache.digest import checksum, sha256_hex
from graphcache.errors import CorruptError
from graphcache.graph import Graph
from graphcache.key import Key
from graphcache.proof.verdict import Verdict
from graphcache.store import records
from graphcache.vendor.judgement import is_judgement

ENTRY_FORMAT = "graphcache-entry-1"
FAILURE_FORMAT = "graphcache-failure-1"


@dataclass(frozen=True)
class Cost:
    """What one compile took: elapsed and CPU seconds, and the compiler's highest resident memory."""

    wall_secs: float
    cpu_secs: float
    peak_rss_bytes: int

    def __post_init__(self) -> None:
        records.secs("wall_secs", self.wall_secs)
        records.secs("cpu_secs", self.cpu_secs)
        records.count("peak_rss_bytes", self.peak_rss_bytes)


@dataclass(frozen=True)
class Facts:
    """What a builder knows about an artifact besides its bytes.

    graph:       the graph it was compiled for; another graph with the same program shares the entry
    estimate_ns: the compiler's own estimate of device time for a call; None when it gave none
    """

    graph: Graph
    cost: Cost
    estimate_ns: int | None = None

    def __post_init__(self) -> None:
        if self.estimate_ns is not None:
            records.count("estimate_ns", self.estimate_ns)


@dataclass(frozen=True)
class Object:
    """The artifact's bytes as an entry names them: SHA-256 is the name, XXH3-128 the check of every load."""

    sha256: str
    xxh3_128: str
    size_bytes: int

    def __post_init__(self) -> None:
        records.digits("an object's sha256", self.sha256, 64)
        records.digits("an object's xxh3_128", self.xxh3_128, 32)
        records.count("size_bytes", self.size_bytes)

    @classmethod
    def of(cls, data: bytes) -> Object:
        return cls(sha256_hex(data), checksum(data), len(data))


@dataclass(frozen=True)
class Entry:
    """The record that `key` compiles to `object`. `created` is UTC, `2026-11-29T15:04:05Z`."""

    key: Key
    object: Object
    facts: Facts
    created: str

    def __post_init__(self) -> None:
        records.moment("created", self.created)

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
        return records.seal(ENTRY_FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """The entry in `data`. Raises CorruptError unless every byte is as `encode` writes it."""
        value = records.unseal(ENTRY_FORMAT, data)
        try:
            facts = Facts(checked_graph(value["graph"]), Cost(**value["cost"]), value["estimate_ns"])
            return cls(Key(value["key"]), Object(**value["object"]), facts, value["created"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"an entry of {len(data)} bytes lacks a field: {error}") from error


@dataclass(frozen=True, kw_only=True)
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

    def __post_init__(self) -> None:
        records.text("graph", self.graph)
        records.text("cause", self.cause)
        records.text("log", self.log)
        records.flag("retryable", self.retryable)
        records.moment("created", self.created)

    @property
    def is_final(self) -> bool:
        """Whether it is known to be the same every time. Records of before 2026-12 may say so of what a machine did."""
        return not self.retryable and is_judgement(self.cause)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": dict(self.key.parts)}

    def encode(self) -> bytes:
        return records.seal(FAILURE_FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        value = records.unseal(FAILURE_FORMAT, data)
        try:
            return cls(**{**value, "key": Key(value["key"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"a failure record of {len(data)} bytes lacks a field: {error}") from error


@dataclass(frozen=True)
class Fault:
    """Something in a store that is not as it was written.

    path and quarantined (the new path) are relative to the store's folder; quarantined is None where the file was left:
    in a store that we may not write to, or with nothing there to move.
    """

    path: str
    problem: str
    quarantined: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """An artifact that a machine looks for.

    key:   of the program, as far as this machine knows its parts
    parts: those that must be equal (`graphcache.key.parts_of`)
    """

    key: Key
    parts: Mapping[str, str]


class Store(Protocol):
    """What build, diff, verify and the trainer need of a store.

    Whatever is read is checked; what does not pass is added to `faults`, quarantined where that is possible, and
    treated as absent.
    """

    @property
    def faults(self) -> list[Fault]:
        """What was found so far that is not as it was written, in the order of finding."""

    def lookup(self, key: Key) -> Entry | None:
        """The entry of `key`, when all its parts are equal and its object passes its checksum."""

    def refuses(self, entry: Entry) -> bool:
        """Whether `entry` is not signed as it has to be."""

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

    def verdict(self, entry: Entry) -> Verdict | None:
        """Whether the artifact of `entry` was proven; None when nobody tried, or the verdict is of other bytes."""

    def record_verdict(self, verdict: Verdict) -> None: ...

    def claim(self, key: Key) -> AbstractContextManager[bool]:
        """Says whether nobody else is known to compile `key`. Only saves duplicate work."""

    def bring(self, wanted: Sequence[Wanted]) -> bool:
        """Fetches what it can of `wanted`, which is not here, from where the store may look further; False for
        nothing. Raises nothing for a place that does not answer."""

    def bring_answers(self, questions: Sequence[str]) -> bool:
        """The same for what `graphcache.store.programs` remembers, by the digests of its questions."""


def checked_graph(value: Any) -> Graph:
    """The graph of an entry or a manifest, each field of its type. Raises ValueError, KeyError, TypeError."""
    graph = Graph.from_json(value)
    for name in ("name", "catalog", "function"):
        records.text(name, getattr(graph, name))
    records.mapping("constants", value["constants"])
    if value["settings"] is not None:
        records.texts("settings", value["settings"])
    records.flag("by_content", value.get("by_content", False))
    for spec in graph.args:
        records.text("an argument's name", spec.name)
        records.text("an argument's dtype", spec.dtype)
        for size in spec.shape:
            records.count(f"a size of {spec.name}", size)
    return graph
