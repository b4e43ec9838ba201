"""What a manifest says against what is true now: which graphs are stale, why, and what building them costs.

Each comparison holds both sides, and its kind follows from them: the key that the manifest has and the key that the
graph would be compiled under now, its source hash then and now, and whether the store has the artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from graphcache.catalog import list_graphs
from graphcache.costs import Costs, Expected
from graphcache.digest import json_sha256
from graphcache.errors import GraphcacheError
from graphcache.graph import Graph, TensorSpec, Way
from graphcache.header.table import TensorTable
from graphcache.key import PROGRAM_FORMAT, Difference, compare_parts, parts_of
from graphcache.manifest.manifest import Manifest, Recorded
from graphcache.plan import PlanItem, plan
from graphcache.source.hash import SourceHashes, changed_parts
from graphcache.store.base import Store
from graphcache.store.programs import Answer, Programs, question

Kind = Literal[
    "unchanged", "same program", "stale", "new", "removed", "missing from the store", "other bytes", "planned"
]
# Kinds that leave nothing to do.
DONE: frozenset[Kind] = frozenset({"unchanged", "same program", "planned"})

# Programs and settings of graphs, in order; an error for one that cannot be exported.
Exporter = Callable[[Sequence[Graph]], Sequence[Answer | GraphcacheError]]


@dataclass(frozen=True, kw_only=True)
class Now:
    """The side of now.

    toolchain: the fields of a key that are seen on this machine; those that are not are taken from the manifest
    torch:     the version that `export` runs, which answers for no other; None without torch
    export:    finds programs that nobody remembers
    """

    sources: SourceHashes
    programs: Programs
    toolchain: Mapping[str, str]
    store: Store
    torch: str | None
    export: Exporter


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One graph, then and now.

    recorded: None for a graph that the manifest does not have
    item:     None for a graph that no catalog lists any more
    reasons:  why it is stale or missing, for people: `source: trainer/graphs/adamw.py::adamw`, `toolchain: fusion 4
              -> 8`; in this order, and empty when there is nothing to say
    expected: what the compile will take, where one is needed and something like it was recorded
    """

    name: str
    recorded: Recorded | None
    item: PlanItem | None
    reasons: tuple[str, ...]
    expected: Expected | None = None

    @property
    def kind(self) -> Kind:
        if self.item is None:
            return "removed"
        if self.recorded is None:
            return "new"
        if self.recorded.status == "planned":
            return "planned"
        if self.item.key is None or self.item.key != self.recorded.key:
            return "stale"
        if self.item.entry is None:
            return "missing from the store"
        if self.has_other_bytes:
            return "other bytes"
        return "unchanged" if self.item.source.digest == self.recorded.source.digest else "same program"

    @property
    def has_other_bytes(self) -> bool:
        """Whether the store has an artifact of the manifest's very key that is not the one which the manifest names."""
        entry = None if self.item is None else self.item.entry
        if entry is None or self.recorded is None or self.recorded.compiled is None:
            return False
        return entry.key == self.recorded.key and entry.artifact_digest != self.recorded.compiled.artifact

    @property
    def to_do(self) -> bool:
        return self.kind not in DONE

    @property
    def to_compile(self) -> bool:
        """Whether it takes a compile; a stale manifest whose artifacts the store has only needs to be written again."""
        return self.to_do and self.item is not None and self.item.entry is None

    @property
    def proof(self) -> str | None:
        """Whether the store's artifact is proven; of one that it lacks, what the manifest says. None: nobody tried."""
        if self.item is not None and (self.item.entry is not None or self.item.state == "disproven"):
            return None if self.item.verdict is None else self.item.verdict.state
        compiled = None if self.recorded is None else self.recorded.compiled
        return None if compiled is None or compiled.proof is None else compiled.proof.state

    @property
    def note(self) -> str:
        """For people, how the manifest's graph was made where that is not the graph itself; empty where it is."""
        if self.recorded is None:
            return ""
        words = [] if self.recorded.way is None else [f"as {self.recorded.way}"]
        return "; ".join([*words, *map(str, self.recorded.refused)])

    def as_json(self) -> dict[str, Any]:
        made = self.item or self.recorded
        return {
            "graph": self.name,
            "state": self.kind,
            "to_do": self.to_do,
            "to_compile": self.to_compile,
            "reasons": list(self.reasons),
            "way": None if made is None else made.made.name,
            "refused": [asdict(each) for each in (() if self.recorded is None else self.recorded.refused)],
            "proof": self.proof,
            "program": self.item and self.item.program,
            "key": self.item and self.item.key and self.item.key.digest,
            "recorded_program": self.recorded and self.recorded.program,
            "expected_secs": self.expected and self.expected.secs,
            "expected_from": self.expected and self.expected.basis,
        }


def listed(manifest: Manifest) -> tuple[Graph, ...]:
    """The graphs that the manifest's catalogs list now, for the same model and options."""
    table = TensorTable.from_groups(manifest.groups)
    return list_graphs(manifest.catalogs, table, manifest.config, manifest.catalog_options).graphs


@dataclass(frozen=True)
class Side:
    """One manifest, the graphs that catalogs list for it now, and their plan under the toolchain of now."""

    manifest: Manifest
    toolchain: Mapping[str, str]
    items: tuple[PlanItem, ...]

    @property
    def planned(self) -> frozenset[str]:
        """Names of graphs that are listed without a compile on purpose."""
        return frozenset(name for name, each in _by_listed_name(self).items() if each.status == "planned")


def compare(pairs: Iterable[tuple[Manifest, Sequence[Graph]]], now: Now) -> list[tuple[Comparison, ...]]:
    """For each manifest and the graphs that its catalogs list now: one comparison a graph, those that are gone last.

    All programs that nobody remembers are exported in one go. Raises SourceError when a graph's source cannot be read.
    """
    sides = [_side(manifest, graphs, now) for manifest, graphs in pairs]
    failed = _export_unknown(sides, now)
    return [_comparisons(side, failed, now) for side in sides]


def _recorded_ways(manifest: Manifest, graphs: Sequence[Graph]) -> dict[str, Way]:
    """The way by which each graph was made, as its catalog lists it now; where it does not, the graph itself.

    Whatever else the store has: a manifest is compared with what it says.
    """
    found = {}
    recorded = {each.graph.name: each for each in manifest.graphs} | {
        _renamed(each.graph): each for each in manifest.graphs
    }
    for graph in graphs:
        each = recorded.get(graph.name) or recorded.get(_renamed(graph))
        named = each and each.way and each.way.graph.identity_digest()
        ways = (way for way in graph.ways if way.graph.identity_digest() == named)
        found[graph.name] = next(ways, Way(graph))
    return found


def _side(manifest: Manifest, graphs: Sequence[Graph], now: Now) -> Side:
    toolchain = {**manifest.toolchain, **now.toolchain}
    items = plan(
        graphs,
        sources=now.sources,
        programs=now.programs,
        toolchain=toolchain,
        store=now.store,
        only=_recorded_ways(manifest, graphs),
    )
    return Side(manifest, toolchain, tuple(items))


def _export_unknown(sides: Iterable[Side], now: Now) -> dict[str, str]:
    """Exports what has to be and remembers it; returns why it could not be told, by question."""
    failed: dict[str, str] = {}
    unknown: dict[str, tuple[PlanItem, str]] = {}
    for side in sides:
        for item in side.items:
            torch = side.toolchain.get("torch", "")
            if item.state != "unknown" or item.graph.name in side.planned:
                continue
            if torch == now.torch:
                unknown[_asked(item, side.toolchain)] = item, torch
            else:
                failed[_asked(item, side.toolchain)] = f"torch {torch} is not installed".replace("  ", " ")
    answers = now.export([item.made for item, _ in unknown.values()]) if unknown else []
    for (asked, (item, torch)), answer in zip(unknown.items(), answers, strict=True):
        if isinstance(answer, GraphcacheError):
            failed[asked] = answer.message
        else:
            graph = item.made.with_recommended(answer.settings)
            now.programs.remember(item.source.digest, graph, torch, answer.program)
    return failed


def _asked(item: PlanItem, toolchain: Mapping[str, str]) -> str:
    return json_sha256(question(item.source.digest, item.made, toolchain.get("torch", "")))


def _comparisons(side: Side, failed: Mapping[str, str], now: Now) -> tuple[Comparison, ...]:
    recorded = _by_listed_name(side)
    costs = _costs(side.manifest)
    needed = {need.name for item in side.items for need in item.needs}
    graphs = [item.graph for item in side.items if item.graph.name not in needed]
    # Once more: what was unknown has a program now.
    items = _side(side.manifest, graphs, now).items if any(i.state == "unknown" for i in side.items) else side.items
    found = []
    for item in items:
        before = recorded.pop(item.graph.name, None)
        note = failed.get(_asked(item, side.toolchain), "")
        found.append(_comparison(side, before, item, note and f"program unknown here: {note}", costs))
    return (
        *found,
        *(Comparison(name=name, recorded=before, item=None, reasons=()) for name, before in recorded.items()),
    )


def _by_listed_name(side: Side) -> dict[str, Recorded]:
    """What the manifest recorded, by the name that the same graph has now: a new name makes no graph stale."""
    names = {item.graph.name for item in side.items}
    now = {_renamed(item.graph): item.graph.name for item in side.items}
    found: dict[str, Recorded] = {}
    for each in side.manifest.graphs:
        name = each.graph.name if each.graph.name in names else now.get(_renamed(each.graph), each.graph.name)
        found.setdefault(name, each)
    return found


def _renamed(graph: Graph) -> tuple[str, str]:
    """What stays of a graph when its catalog gives it another name."""
    return graph.catalog, graph.identity_digest()


def _comparison(side: Side, before: Recorded | None, item: PlanItem, note: str, costs: Costs) -> Comparison:
    bare = Comparison(name=item.graph.name, recorded=before, item=item, reasons=())
    reasons: list[str] = []
    if bare.kind == "stale" and before is not None:
        reasons = _stale(side, before, item)
    if bare.to_do:
        if bare.kind == "other bytes" and item.entry and before and before.compiled:
            found, named = item.entry.artifact_digest[:12], before.compiled.artifact[:12]
            reasons.append(f"the store has {found}, the manifest names {named}")
        elif item.entry is not None:
            reasons.append("in the store already")
        elif note:
            reasons.append(note)
        elif bare.kind == "missing from the store" or item.state in ("failed", "disproven"):
            reasons.append(item.reason)
    expected = costs.expect(item.made) if bare.to_compile else None
    return Comparison(name=bare.name, recorded=before, item=item, reasons=tuple(reasons), expected=expected)


def _stale(side: Side, before: Recorded, item: PlanItem) -> list[str]:
    """What differs, named: source, signature, then toolchain and settings."""
    reasons = []
    same_program = item.program is not None and item.program == before.program
    if before.source.digest != item.source.digest and not same_program:
        parts = changed_parts(before.source.parts, item.source.parts) or [item.made.function]
        reasons.append(f"source: {', '.join(parts)}")
    reasons += [f"signature: {change}" for change in _signature_changes(before.made, item.made)]
    if side.manifest.program_format != PROGRAM_FORMAT:
        reasons.append(f"toolchain: {Difference('program form', side.manifest.program_format, PROGRAM_FORMAT)}")
    old = parts_of(side.manifest.toolchain, before.made.settings)
    new = parts_of(side.toolchain, item.made.settings)
    reasons += [f"toolchain: {change}" for change in compare_parts(old, new)]
    if not reasons and item.program is not None and before.program is not None:
        reasons = ["program: the same source and toolchain gave another one"]
    return reasons


def _signature_changes(before: Graph, after: Graph) -> list[str]:
    """Differences of two graphs of one name: function, arguments, constants."""
    changes = [f"function {before.function} -> {after.function}"] if before.function != after.function else []
    old, new = [_spec(spec) for spec in before.args], [_spec(spec) for spec in after.args]
    if len(old) != len(new):
        changes.append(f"{len(old)} arguments -> {len(new)}")
    elif old != new:
        changes += [f"argument {i} {a} -> {b}" for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    for name in sorted({*before.constants, *after.constants}):
        a, b = before.constants.get(name), after.constants.get(name)
        if a != b:
            changes.append(f"constant {name} {a} -> {b}")
    return changes


def _spec(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _costs(manifest: Manifest) -> Costs:
    costs = Costs()
    for recorded in manifest.graphs:
        if recorded.compiled is not None:
            costs.add(recorded.made, recorded.compiled.cost)
    return costs
