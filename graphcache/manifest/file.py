"""Manifests as files: written whole or not at all and only when they change, checked field by field when read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcache.catalog import CatalogOptions
from graphcache.errors import GraphcacheError
from graphcache.graph import Combined, Graph, Use, Way
from graphcache.header.groups import TensorGroup
from graphcache.manifest.manifest import (
    DTYPES,
    FORMAT,
    OPTION_LIMIT,
    Compiled,
    Manifest,
    Proof,
    Recorded,
    recorded_graph,
)
from graphcache.manifest.text import (
    ANEW,
    ManifestFieldError,
    ManifestFormatError,
    ManifestMissingError,
    ManifestTargetError,
    parse,
    render,
)
from graphcache.plan import Refused
from graphcache.source.hash import SourceHash
from graphcache.store import records
from graphcache.store.base import Cost, checked_graph
from graphcache.store.files import check_writable, write_file
from graphcache.store.reading import read_file

ELSEWHERE = "name another file with --manifest"
# Fields that only a graph has which was not made as it is.
OPTIONAL = {"way", "refused"}
# A model's three catalogs take 30 KB.
LIMIT_BYTES = 64 * 1024 * 1024


def check_target(path: Path) -> None:
    """Whether a manifest can be written to `path`, asked before a build of hours.

    Raises ManifestTargetError for what is there and is no manifest, and for a folder that cannot be written.
    """
    target = _target(path)
    if os.path.lexists(target) and not (target.is_file() and is_manifest(target)):
        raise ManifestTargetError(path, "it is there, and no manifest: it stays as it is", hint=ELSEWHERE)
    try:
        check_writable(target.parent)
    except OSError as error:
        fact = f"{error.filename} is no folder that can be written: {error.strerror}"
        raise ManifestTargetError(path, fact, hint=ELSEWHERE) from error


def write_manifest(path: Path, manifest: Manifest) -> bool:
    """Makes the file hold `manifest`, whole or not at all. False, and the file untouched, when it did already.

    A link stays one, and what it leads to is written. Raises ManifestTargetError, StoreError when it cannot be.
    """
    data = render(manifest.as_json()).encode("ascii")
    target = _target(path)
    check_target(path)
    try:
        if target.read_bytes() == data:
            return False
    except OSError:
        pass
    write_file(target, data, replace=True, instead=ELSEWHERE)
    target.chmod(0o644)
    return True


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


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
        raise ManifestFieldError(path, str(error), hint=f"restore it from git; {ANEW}") from error


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
    toolchain = _check_toolchain(records.texts("toolchain", value["toolchain"]))
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
        model=records.text("model", value["model"]),
        config=None if config is None else dict(records.mapping("config", config)),
        groups=tuple(TensorGroup.from_json(group) for group in _list("groups", value["groups"])),
        catalogs=tuple(records.text("a catalog", name) for name in _list("catalogs", value["catalogs"])),
        options=dict(options),
        toolchain=toolchain,
        graphs=graphs,
        uses=tuple(_decode_use(use, names, f"uses[{i}]") for i, use in enumerate(_list("uses", value["uses"]))),
        program_format=records.text("program_format", value["program_format"]),
    )


def _decode_graph(value: Any, toolchain: Mapping[str, str], where: str) -> Recorded:
    try:
        fields = {"graph", "status", "source", "program", "key", "compiled"}
        _only(records.mapping("it", value), fields | (OPTIONAL & value.keys()), "it")
        graph = _decode_signature(value["graph"])
        source = _decode_source(value["source"])
        program = None if value["program"] is None else records.digits("program", value["program"], 64)
        compiled = None if value["compiled"] is None else _decode_compiled(value["compiled"])
        way = _decode_way(value["way"]) if "way" in value else None
        refused = tuple(_decode_refused(each) for each in _list("refused", value.get("refused", [])))
        recorded = recorded_graph(graph, source, program, toolchain, compiled, way, refused)
    except (ValueError, TypeError, KeyError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {lacks}") from error
    if value["status"] != recorded.status:
        raise ValueError(f"{where} has the status {value['status']!r} where its facts say {recorded.status!r}")
    if value["key"] != (recorded.key and recorded.key.digest):
        raise ValueError(f"{where} has a key that is not the digest of its program, toolchain and settings")
    return recorded


def _decode_signature(value: Any) -> Graph:
    fields = {"name", "catalog", "function", "args", "constants", "settings", "by_content"}
    _only({"by_content": False, **records.mapping("graph", value)}, fields, "graph")
    return checked_graph(value)


def _decode_way(value: Any) -> Way:
    _only(records.mapping("way", value), {"graph", "calls", "results"}, "way")
    results = tuple(_decode_combined(each) for each in _list("way.results", value["results"]))
    return Way(_decode_signature(value["graph"]), records.count("way.calls", value["calls"]), results)


def _decode_combined(value: Any) -> Combined:
    _only(records.mapping("a result of a way", value), {"how", "graph", "argument"}, "a result of a way")
    if value["how"] not in ("join", "sum", "carry"):
        raise ValueError(f"a result of a way is combined by {value['how']!r}, none of join, sum, carry")
    graph = None if value["graph"] is None else _decode_signature(value["graph"])
    argument = None if value["argument"] is None else records.count("argument", value["argument"])
    return Combined(value["how"], graph, argument)


def _decode_refused(value: Any) -> Refused:
    _only(records.mapping("refused", value), {"graph", "cause"}, "refused")
    return Refused(records.text("refused.graph", value["graph"]), records.text("refused.cause", value["cause"]))


def _decode_source(value: Any) -> SourceHash:
    _only(records.mapping("source", value), {"digest", "parts"}, "source")
    return SourceHash(
        records.digits("source.digest", value["digest"], 64), records.texts("source.parts", value["parts"])
    )


def _decode_compiled(value: Any) -> Compiled:
    # A manifest of before there were proofs has none.
    value = {"proof": None, **records.mapping("compiled", value)}
    _only(value, {"artifact", "size_bytes", "cost", "estimate_ns", "proof"}, "compiled")
    estimate_ns, proof = value["estimate_ns"], value["proof"]
    return Compiled(
        artifact=records.digits("artifact", value["artifact"], 64),
        size_bytes=records.count("size_bytes", value["size_bytes"]),
        cost=Cost(**records.mapping("cost", value["cost"])),
        estimate_ns=None if estimate_ns is None else records.count("estimate_ns", estimate_ns),
        proof=None if proof is None else Proof(**records.mapping("proof", proof)),
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
        if "." in name:
            # Whether the catalog has it, and of which type, is asked when the catalog is called.
            if type(option) not in (int, float, str, bool):
                raise ValueError(f"options holds {name!r}: {option!r}, which is no option's value")
            continue
        if name not in defaults or type(option) is not type(defaults[name]):
            raise ValueError(f"options holds {name!r}: {option!r}, which no catalog has")
        if name == "dtype" and option not in DTYPES:
            raise ValueError(f"options.dtype is {option!r}, none of {', '.join(DTYPES)}")
        if name != "dtype" and not 1 <= option <= OPTION_LIMIT:
            raise ValueError(f"options.{name} is {option:,}, not from 1 to {OPTION_LIMIT:,}")


def _check_toolchain(toolchain: Mapping[str, str]) -> Mapping[str, str]:
    if not re.fullmatch("[0-9]{1,3}", toolchain.get("fusion", "1"), re.ASCII):
        raise ValueError(f"toolchain.fusion is {toolchain['fusion']!r}, not a number of PEs")
    return toolchain


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
