"""A manifest: a small committed file that lists the graphs of one model, their programs, keys, artifacts and costs.

It holds the model's tensor groups and config, so catalogs can be run again without the model, and diff can say which
graphs are new and which are gone. Nothing in it depends on a path, a host or a time.

    graphs[].status  compiled: `artifact`, `cost` and `estimate_ns` are those of a real compile
                     planned:  listed on purpose without one; not stale, and not to do, until somebody builds it
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from graphcache.catalog import CatalogOptions
from graphcache.digest import json_sha256
from graphcache.graph import Graph, Listing, Use, Way
from graphcache.header.groups import TensorGroup
from graphcache.key import PROGRAM_FORMAT, Key
from graphcache.plan import Refused
from graphcache.proof.verdict import STATES, Verdict
from graphcache.source.hash import SourceHash
from graphcache.store import records
from graphcache.store.base import Cost, Entry
from graphcache.store.programs import Answer, question

FORMAT = "graphcache-manifest-1"
# Of config.json: what says who wrote it, not what the model is. Names with a leading underscore go too.
CONFIG_LEFT_OUT = frozenset({"transformers_version", "auto_map"})
# What the options of catalogs may be: no weight has so many elements.
OPTION_LIMIT = 1 << 40
DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a verdict says of an artifact, without when and how long: state, largest share of a bound, and of what."""

    state: str
    share: float | None
    method: str
    seed: int
    sets: int

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"proof.state is {self.state!r}, none of {', '.join(STATES)}")
        if self.share is not None:
            records.secs("proof.share", self.share)
        records.text("proof.method", self.method)
        records.count("proof.seed", self.seed)
        records.count("proof.sets", self.sets)

    @classmethod
    def of(cls, verdict: Verdict) -> Proof:
        share = None if verdict.share is None else float(f"{verdict.share:.3g}")
        return cls(state=verdict.state, share=share, method=verdict.method, seed=verdict.seed, sets=verdict.sets)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compile gave: digest and size of the artifact, what it took, the compiler's estimate of device time.

    proof: None where nobody has tried
    """

    artifact: str
    size_bytes: int
    cost: Cost
    estimate_ns: int | None
    proof: Proof | None = None

    @classmethod
    def of(cls, entry: Entry, verdict: Verdict | None = None) -> Compiled:
        proof = None if verdict is None else Proof.of(verdict)
        return cls(
            artifact=entry.artifact_digest,
            size_bytes=entry.size_bytes,
            cost=entry.cost,
            estimate_ns=entry.facts.estimate_ns,
            proof=proof,
        )


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One graph of a manifest.

    program: None for a planned graph that nobody has exported
    key:     program, toolchain and settings; None without a program
    way:     how it was made, where that is not the graph itself; source, program and key are then those of its way
    refused: the ways that the compiler refused before
    """

    graph: Graph
    source: SourceHash
    program: str | None
    key: Key | None
    compiled: Compiled | None
    way: Way | None = None
    refused: tuple[Refused, ...] = ()

    @property
    def made(self) -> Graph:
        """What was compiled for it."""
        return self.graph if self.way is None else self.way.graph

    def with_made(self, graph: Graph) -> Recorded:
        """The same with another graph that was compiled for it."""
        if self.way is None:
            return replace(self, graph=graph)
        return replace(self, way=replace(self.way, graph=graph))

    @property
    def status(self) -> Literal["compiled", "planned"]:
        return "planned" if self.compiled is None else "compiled"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The graphs of one model for one toolchain.

    model:     the model's name, for people
    config:    what config.json says of the model; None where there was none
    groups:    its tensors
    catalogs:  which catalogs list the graphs, in order
    options:   the catalogs' options that are not the default, so that a new default shows as new graphs
    toolchain: the fields of every key, besides program and settings
    """

    model: str
    config: Mapping[str, Any] | None
    groups: tuple[TensorGroup, ...]
    catalogs: tuple[str, ...]
    options: Mapping[str, Any]
    toolchain: Mapping[str, str]
    graphs: tuple[Recorded, ...]
    uses: tuple[Use, ...]
    program_format: str = PROGRAM_FORMAT

    @property
    def catalog_options(self) -> CatalogOptions:
        return CatalogOptions.from_json(self.options)

    @property
    def fusion(self) -> int | None:
        """None where the toolchain does not say."""
        return int(self.toolchain["fusion"]) if "fusion" in self.toolchain else None

    @property
    def artifacts(self) -> dict[str, str]:
        """The digest of each compiled graph's artifact, by the digest of its key."""
        return {each.key.digest: each.compiled.artifact for each in self.graphs if each.key and each.compiled}

    @classmethod
    def of(
        cls,
        model: str,
        *,
        config: Mapping[str, Any] | None,
        groups: Iterable[TensorGroup],
        catalogs: Iterable[str],
        options: CatalogOptions,
        toolchain: Mapping[str, str],
        listing: Listing,
        sources: Mapping[str, SourceHash],
        programs: Mapping[str, str],
        compiled: Mapping[str, Compiled],
        ways: Mapping[str, Way | None] | None = None,
        refused: Mapping[str, tuple[Refused, ...]] | None = None,
    ) -> Manifest:
        """The manifest of a listing. All that follows it is by graph name; a graph without a compile is planned."""
        defaults = CatalogOptions().as_json()
        chosen = {name: value for name, value in options.as_json().items() if value != defaults.get(name)}
        recorded = [
            recorded_graph(
                graph,
                sources[graph.name],
                programs.get(graph.name),
                toolchain,
                compiled.get(graph.name),
                (ways or {}).get(graph.name),
                (refused or {}).get(graph.name, ()),
            )
            for graph in listing.graphs
        ]
        return cls(
            model=model,
            config=None if config is None else portable_config(config),
            groups=tuple(groups),
            catalogs=tuple(catalogs),
            options=dict(sorted(chosen.items())),
            toolchain=dict(sorted(toolchain.items())),
            graphs=tuple(recorded),
            uses=listing.uses,
        )

    def as_json(self) -> dict[str, Any]:
        """Fields in the order of the file."""
        return {
            "format": FORMAT,
            "model": self.model,
            "catalogs": list(self.catalogs),
            "options": dict(self.options),
            "toolchain": dict(self.toolchain),
            "program_format": self.program_format,
            "graphs": [_graph_json(recorded) for recorded in self.graphs],
            "uses": [use.as_json() for use in self.uses],
            "config": None if self.config is None else dict(self.config),
            "groups": [group.as_json() for group in self.groups],
        }


def known_programs(manifests: Iterable[Manifest]) -> dict[str, Answer]:
    """The programs that manifests name, by the digest of the question that each one answers; the last manifest wins."""
    return {
        json_sha256(question(each.source.digest, each.made, manifest.toolchain.get("torch", ""))): Answer(
            each.program, each.made.settings or {}
        )
        for manifest in manifests
        if manifest.program_format == PROGRAM_FORMAT
        for each in manifest.graphs
        if each.program is not None
    }


def with_proofs(manifest: Manifest, verdicts: Iterable[Verdict]) -> Manifest:
    """The manifest with what is known of the very artifacts that it names."""
    known = {(verdict.key.digest, verdict.artifact): verdict for verdict in verdicts}

    def proven(recorded: Recorded) -> Recorded:
        if recorded.key is None or recorded.compiled is None:
            return recorded
        verdict = known.get((recorded.key.digest, recorded.compiled.artifact))
        proof = recorded.compiled.proof if verdict is None else Proof.of(verdict)
        return replace(recorded, compiled=replace(recorded.compiled, proof=proof))

    return replace(manifest, graphs=tuple(map(proven, manifest.graphs)))


@dataclass(frozen=True)
class OtherBytes:
    """A difference: the manifest names the artifact `recorded` for a key, and the store holds `found`."""

    graph: str
    key: str
    recorded: str
    found: str

    def __str__(self) -> str:
        key, recorded, found = (digest[:12] for digest in (self.key, self.recorded, self.found))
        return f"{self.graph}, key {key}: artifact {found} where the manifest names {recorded}"


def other_bytes(manifest: Manifest, found: Mapping[str, str]) -> list[OtherBytes]:
    """Where `found`, artifact digests by key digest, is at odds with a manifest; what is not in it is not."""
    names = {each.key.digest: each.graph.name for each in manifest.graphs if each.key}
    return [
        OtherBytes(names[key], key, recorded, found[key])
        for key, recorded in manifest.artifacts.items()
        if found.get(key, recorded) != recorded
    ]


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what says nothing about the model, or names a place on somebody's disk; sorted.

    NaN and infinity, which some config.json hold and JSON has no words for, become null.
    """
    return {
        name: _json_value(value)
        for name, value in sorted(config.items())
        if not name.startswith("_")
        and name not in CONFIG_LEFT_OUT
        and not (isinstance(value, str) and os.path.isabs(value))
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def recorded_graph(
    graph: Graph,
    source: SourceHash,
    program: str | None,
    toolchain: Mapping[str, str],
    compiled: Compiled | None,
    way: Way | None = None,
    refused: tuple[Refused, ...] = (),
) -> Recorded:
    """A graph with its key. Raises ValueError for a compiled one without a program."""
    if compiled is not None and program is None:
        raise ValueError("it was compiled and has no program")
    made = graph if way is None else way.graph
    key = None if program is None else Key.of(program, toolchain, made.settings)
    return Recorded(graph=graph, source=source, program=program, key=key, compiled=compiled, way=way, refused=refused)


def _compiled_json(compiled: Compiled) -> dict[str, Any]:
    found = asdict(compiled)
    return found if compiled.proof else {name: value for name, value in found.items() if name != "proof"}


def _graph_json(recorded: Recorded) -> dict[str, Any]:
    compiled = recorded.compiled
    way = {} if recorded.way is None else {"way": recorded.way.as_json()}
    refused = {} if not recorded.refused else {"refused": [asdict(each) for each in recorded.refused]}
    return {
        "graph": recorded.graph.as_json(),
        **way,
        **refused,
        "status": recorded.status,
        "source": recorded.source.as_json(),
        "program": recorded.program,
        "key": recorded.key and recorded.key.digest,
        "compiled": None if compiled is None else _compiled_json(compiled),
    }
