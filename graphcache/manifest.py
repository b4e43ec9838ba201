"""A manifest: a small committed file that lists the graphs of one model, their programs, keys, artifacts and costs.

It holds the model's tensor groups and config, so catalogs can be run again without the model, and diff can say which
graphs are new and which are gone. Nothing in it depends on a path, a host or a time.

    graphs[].status  compiled: `artifact`, `cost` and `estimate_ns` are those of a real compile
                     planned:  listed on purpose without one; not stale, and not to do, until somebody builds it
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from graphcache.catalog import CatalogOptions
from graphcache.errors import GraphcacheError
from graphcache.graph import Graph, Listing, Use
from graphcache.groups import TensorGroup
from graphcache.key import Key
from graphcache.manifest_json import (
    ManifestError,
    ManifestFieldError,
    ManifestFormatError,
    ManifestJsonError,
    ManifestMissingError,
    parse,
    render,
)
from graphcache.programs import PROGRAM_FORMAT
from graphcache.source import SourceHash
from graphcache.store import records
from graphcache.store.base import Cost, Entry, checked_graph
from graphcache.store.files import write_file
from graphcache.store.reading import read_file

__all__ = [
    "Compiled",
    "Manifest",
    "ManifestError",
    "ManifestFieldError",
    "ManifestFormatError",
    "ManifestJsonError",
    "ManifestMissingError",
    "Recorded",
    "read_manifest",
    "write_manifest",
]

FORMAT = "graphcache-manifest-1"
# 300 KB are a model's three catalogs.
LIMIT_BYTES = 64 * 1024 * 1024
# Of config.json: what says who wrote it, not what the model is. Names with a leading underscore go too.
CONFIG_LEFT_OUT = frozenset({"transformers_version", "auto_map"})


@dataclass(frozen=True)
class Compiled:
    """What a compile gave: digest and size of the artifact, what it took, the compiler's estimate of device time."""

    artifact: str
    size_bytes: int
    cost: Cost
    estimate_ns: int | None

    @classmethod
    def of(cls, entry: Entry) -> Compiled:
        return cls(entry.artifact_digest, entry.size_bytes, entry.cost, entry.facts.estimate_ns)


@dataclass(frozen=True)
class Recorded:
    """One graph of a manifest.

    program: None for a planned graph that nobody has exported
    key:     program, toolchain and settings; None without a program
    """

    graph: Graph
    source: SourceHash
    program: str | None
    key: Key | None
    compiled: Compiled | None

    @property
    def status(self) -> Literal["compiled", "planned"]:
        return "planned" if self.compiled is None else "compiled"


@dataclass(frozen=True)
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
        return CatalogOptions(**self.options)

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
    ) -> Manifest:
        """The manifest of a listing. `sources`, `programs` and `compiled` are by graph name; a graph without a compile
        is planned."""
        defaults = CatalogOptions().as_json()
        chosen = {name: value for name, value in options.as_json().items() if value != defaults[name]}
        recorded = [
            _recorded(graph, sources[graph.name], programs.get(graph.name), toolchain, compiled.get(graph.name))
            for graph in listing.graphs
        ]
        return cls(
            model,
            None if config is None else portable_config(config),
            tuple(groups),
            tuple(catalogs),
            dict(sorted(chosen.items())),
            dict(sorted(toolchain.items())),
            tuple(recorded),
            listing.uses,
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


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what says nothing about the model, or names a place on somebody's disk; sorted."""
    return {
        name: value
        for name, value in sorted(config.items())
        if not name.startswith("_")
        and name not in CONFIG_LEFT_OUT
        and not (isinstance(value, str) and os.path.isabs(value))
    }


def write_manifest(path: Path, manifest: Manifest) -> bool:
    """Makes the file hold `manifest`, whole or not at all. False, and the file untouched, when it did already.

    Raises StoreError when it cannot be written.
    """
    data = render(manifest.as_json()).encode("ascii")
    try:
        if path.read_bytes() == data:
            return False
    except OSError:
        pass
    write_file(path.absolute(), data, replace=True)
    path.chmod(0o644)
    return True


def read_manifest(path: Path) -> Manifest:
    """Raises a kind of ManifestError, naming file and field."""
    try:
        data = read_file(path, limit_bytes=LIMIT_BYTES)
    except OSError as error:
        raise ManifestMissingError(path, error.strerror or str(error), hint="build --manifest writes one") from error
    except GraphcacheError as error:
        raise ManifestFormatError(path, error.message, hint="give a manifest written by build --manifest") from error
    return decode_manifest(data, path)


def decode_manifest(data: bytes, path: str | os.PathLike[str]) -> Manifest:
    """The manifest in `data`; `path` names it in errors. Raises kinds of ManifestError."""
    value = parse(data, FORMAT, path)
    try:
        return _decode(value)
    except (ValueError, TypeError, GraphcacheError) as error:
        raise ManifestFieldError(path, str(error), hint="restore it from git, or build --manifest again") from error


def is_manifest(path: Path) -> bool:
    """Whether a file says that it is a manifest, of whatever version."""
    try:
        with open(path, "rb") as file:
            return b'"graphcache-manifest-' in file.read(200)
    except OSError:
        return False


def _decode(value: dict[str, Any]) -> Manifest:
    expected = ("format", "model", "catalogs", "options", "toolchain", "program_format", "graphs", "uses", "config")
    _only(value, {*expected, "groups"}, "the manifest")
    toolchain = records.texts("toolchain", value["toolchain"])
    graphs = tuple(
        _decode_graph(graph, toolchain, f"graphs[{i}]") for i, graph in enumerate(_list("graphs", value["graphs"]))
    )
    names = [recorded.graph.name for recorded in graphs]
    if len({*names}) != len(names):
        raise ValueError("graphs holds two graphs of one name")
    options = records.mapping("options", value["options"])
    _check_options(options)
    config = value["config"]
    return Manifest(
        records.text("model", value["model"]),
        None if config is None else dict(records.mapping("config", config)),
        tuple(TensorGroup.from_json(group) for group in _list("groups", value["groups"])),
        tuple(records.text("a catalog", name) for name in _list("catalogs", value["catalogs"])),
        dict(options),
        toolchain,
        graphs,
        tuple(_decode_use(use, names, f"uses[{i}]") for i, use in enumerate(_list("uses", value["uses"]))),
        records.text("program_format", value["program_format"]),
    )


def _decode_graph(value: Any, toolchain: Mapping[str, str], where: str) -> Recorded:
    try:
        _only(records.mapping("it", value), {"graph", "status", "source", "program", "key", "compiled"}, "it")
        graph = _decode_signature(value["graph"])
        source = _decode_source(value["source"])
        program = None if value["program"] is None else records.digits("program", value["program"], 64)
        compiled = None if value["compiled"] is None else _decode_compiled(value["compiled"])
        recorded = _recorded(graph, source, program, toolchain, compiled)
    except (ValueError, TypeError, KeyError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {lacks}") from error
    if value["status"] != recorded.status:
        raise ValueError(f"{where} has the status {value['status']!r} where its facts say {recorded.status!r}")
    if value["key"] != (recorded.key and recorded.key.digest):
        raise ValueError(f"{where} has a key that is not the digest of its program, toolchain and settings")
    return recorded


def _recorded(
    graph: Graph, source: SourceHash, program: str | None, toolchain: Mapping[str, str], compiled: Compiled | None
) -> Recorded:
    if compiled is not None and program is None:
        raise ValueError("it was compiled and has no program")
    key = None if program is None else Key.of(program, toolchain, graph.settings)
    return Recorded(graph, source, program, key, compiled)


def _graph_json(recorded: Recorded) -> dict[str, Any]:
    compiled = recorded.compiled
    return {
        "graph": recorded.graph.as_json(),
        "status": recorded.status,
        "source": recorded.source.as_json(),
        "program": recorded.program,
        "key": recorded.key and recorded.key.digest,
        "compiled": None if compiled is None else {**asdict(compiled), "cost": asdict(compiled.cost)},
    }


def _decode_signature(value: Any) -> Graph:
    _only(records.mapping("graph", value), {"name", "catalog", "function", "args", "constants", "settings"}, "graph")
    return checked_graph(value)


def _decode_source(value: Any) -> SourceHash:
    _only(records.mapping("source", value), {"digest", "parts"}, "source")
    return SourceHash(
        records.digits("source.digest", value["digest"], 64), records.texts("source.parts", value["parts"])
    )


def _decode_compiled(value: Any) -> Compiled:
    _only(records.mapping("compiled", value), {"artifact", "size_bytes", "cost", "estimate_ns"}, "compiled")
    estimate_ns = value["estimate_ns"]
    return Compiled(
        records.digits("artifact", value["artifact"], 64),
        records.count("size_bytes", value["size_bytes"]),
        Cost(**records.mapping("cost", value["cost"])),
        None if estimate_ns is None else records.count("estimate_ns", estimate_ns),
    )


def _decode_use(value: Any, names: list[str], where: str) -> Use:
    _only(records.mapping(where, value), {"graph", "what", "count", "calls"}, where)
    graph = records.text(f"{where}.graph", value["graph"])
    if graph not in names:
        raise ValueError(f"{where} names the graph {graph!r}, which is not in graphs")
    counts = [records.count(f"{where}.{name}", value[name]) for name in ("count", "calls")]
    return Use(graph, records.text(f"{where}.what", value["what"]), *counts)


def _check_options(options: Mapping[str, Any]) -> None:
    defaults = CatalogOptions().as_json()
    for name, option in options.items():
        if name not in defaults or type(option) is not type(defaults[name]):
            raise ValueError(f"options holds {name!r}: {option!r}, which no catalog has")


def _only(value: Mapping[str, Any], fields: set[str], where: str) -> None:
    """Exactly these fields. One that is not known would be dropped in silence when the manifest is written again."""
    for name in sorted(fields - value.keys()):
        raise ValueError(f"{where} lacks {name!r}")
    for name in sorted(value.keys() - fields):
        raise ValueError(f"{where} holds {name!r}, which this program does not know")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {value!r}, not a list")
    return value
