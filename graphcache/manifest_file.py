"""Manifests as files: written whole or not at all and only when they change, checked field by field when read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import GraphcacheError
from graphcache.graph import Graph, Use
from graphcache.groups import TensorGroup
from graphcache.manifest import FORMAT, Compiled, Manifest, Recorded, recorded_graph
from graphcache.manifest_json import (
    ManifestFieldError,
    ManifestFormatError,
    ManifestMissingError,
    parse,
    render,
)
from graphcache.source import SourceHash
from graphcache.store import records
from graphcache.store.base import Cost, checked_graph
from graphcache.store.files import write_file
from graphcache.store.reading import read_file

# A model's three catalogs take 30 KB.
LIMIT_BYTES = 64 * 1024 * 1024


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
        recorded = recorded_graph(graph, source, program, toolchain, compiled)
    except (ValueError, TypeError, KeyError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {lacks}") from error
    if value["status"] != recorded.status:
        raise ValueError(f"{where} has the status {value['status']!r} where its facts say {recorded.status!r}")
    if value["key"] != (recorded.key and recorded.key.digest):
        raise ValueError(f"{where} has a key that is not the digest of its program, toolchain and settings")
    return recorded


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
