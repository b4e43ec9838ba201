"""A verdict: whether an artifact computes what its graph's function says, as a small file beside the entry.

It holds for one artifact, named by its SHA-256: other bytes under the same key have no verdict. `docs/proof.md` says
what is run and how the bound is derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from graphcache.errors import CorruptError
from graphcache.key import Key
from graphcache.store import records

FORMAT = "graphcache-verdict-1"

# `proven`: every element of every result lay within its bound. `disproven`: one did not. `unproven`: it was tried and
# could not be told; the reason says why.
State = Literal["proven", "disproven", "unproven"]
STATES: tuple[State, ...] = ("proven", "disproven", "unproven")


@dataclass(frozen=True)
class Deviation:
    """One result of a graph over all sets of inputs, at the element whose error fills most of its bound.

    share: error over bound: at most 1 when it is proven; None where the result is no number, or its bound is 0
    """

    dtype: str
    share: float | None
    error: float | None
    bound: float

    def __post_init__(self) -> None:
        records.text("dtype", self.dtype)
        records.secs("bound", self.bound)
        for name in ("share", "error"):
            if getattr(self, name) is not None:
                records.secs(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a proof found.

    artifact: SHA-256 of the artifact's bytes
    reason:   why it is not proven, for people; empty when it is
    ran:      what computed the results: `host executor`
    method:   the form of inputs and bounds (`graphcache.proof.check.METHOD`)
    releases: furiosa-torch, compiler-revision, torch and fusion of the process that ran it
    seed:     of the inputs; `sets` is how many sets of them were run
    secs:     all of it took, the reference included
    created:  UTC, like 2026-11-29T15:04:05Z
    """

    key: Key
    artifact: str
    graph: str
    state: State
    reason: str
    ran: str
    method: str
    releases: Mapping[str, str]
    seed: int
    sets: int
    results: tuple[Deviation, ...]
    secs: float
    created: str

    def __post_init__(self) -> None:
        records.digits("artifact", self.artifact, 64)
        for name in ("graph", "reason", "ran", "method"):
            records.text(name, getattr(self, name))
        if self.state not in STATES:
            raise ValueError(f"state is {self.state!r}, none of {', '.join(STATES)}")
        records.texts("releases", self.releases)
        records.count("seed", self.seed)
        records.count("sets", self.sets)
        records.secs("secs", self.secs)
        records.moment("created", self.created)

    @property
    def share(self) -> float | None:
        """The largest share of its bound that any result took; None without results, or where one has no number."""
        shares = [result.share for result in self.results]
        return None if None in shares else max((share for share in shares if share is not None), default=None)

    @property
    def text(self) -> str:
        """In a few words: `proven, at most 0.43 of the bound`."""
        if self.state == "proven":
            return "proven" if self.share is None else f"proven, at most {self.share:.2g} of the bound"
        return f"{self.state}: {self.reason}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": dict(self.key.parts), "results": [asdict(each) for each in self.results]}

    def encode(self) -> bytes:
        return records.seal(FORMAT, self.as_json())

    @classmethod
    def decode(cls, data: bytes) -> Verdict:
        """Raises CorruptError unless every byte is as `encode` writes it."""
        value = records.unseal(FORMAT, data)
        try:
            results = tuple(Deviation(**each) for each in value["results"])
            return cls(**{**value, "key": Key(value["key"]), "results": results})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"a verdict of {len(data)} bytes lacks a field: {error}") from error
