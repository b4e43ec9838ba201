"""The graphs that a run calls, found in the cache before a device is opened; never compiled."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphcache.artifact import Artifact
from graphcache.catalog import list_graphs
from graphcache.errors import GraphcacheError, MissingGraphsError
from graphcache.graph import Graph
from graphcache.local.memo import memo_of
from graphcache.location import cache_dir
from graphcache.lookup import LISTED, PlanItem, count, entries, look_up
from graphcache.process.own_command import build_command, own_command
from graphcache.remote.opening import open_store
from graphcache.remote.url import remote_urls
from graphcache.runtime.versions import runtime_parts
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from trainer.checkpoint.pretrained import InputCheckpoint
from trainer.config import RunConfig

# What forward and backward call: with --eager-layers it runs on the host.
MODEL_CATALOGS = ("layer", "head", "tiles")


class UnprovenGraphsError(GraphcacheError):
    """Graphs that nobody has proven, where a run asks for proofs."""

    name = "unproven"


@dataclass(frozen=True)
class CachedGraphs:
    """One item a graph, ready or with the reason why it is missing; `build_command` fills what is."""

    store: LocalStore
    items: Sequence[PlanItem]
    build_command: str

    @property
    def joining_bytes(self) -> int:
        """What the largest result of row tiles takes a second time while its tiles are joined."""
        tiled = (graph for item in self.items if item.calls > 1 for graph in item.needs)
        return max((sum(spec.size_bytes for spec in graph.args) for graph in tiled), default=0)

    @property
    def size_bytes(self) -> int:
        """Size of the artifacts that were found. Loaded, they take a little less."""
        return sum(item.entry.size_bytes for item in self.items if item.entry is not None)

    def entries(self) -> dict[str, Entry]:
        """Entry by graph name. Raises MissingGraphsError, with each reason."""
        faults = [f"{fault.path}: {fault.problem}" for fault in self.store.faults]
        return entries(self.items, command=self.build_command, troubles=[*self.store.troubles, *faults])

    @property
    def unproven(self) -> list[PlanItem]:
        """Those whose artifact nobody has shown to be right."""
        found = (item for item in self.items if item.entry is not None)
        return [item for item in found if item.verdict is None or item.verdict.state != "proven"]

    def check_proven(self) -> None:
        """Raises UnprovenGraphsError, naming each graph that is in the cache and not proven."""
        if self.unproven:
            raise UnprovenGraphsError(
                "\n".join([f"{self.unproven_text()}, and --require-proof is given:", *_lines(self.unproven)]),
                hint=self.prove_command,
            )

    def unproven_text(self) -> str:
        return f"{len(self.unproven)} of {len(self.items)} graphs are not proven to compute the right thing"

    @property
    def prove_command(self) -> str:
        """The command that proves the whole cache: a line with fifty keys would be too long to copy."""
        return shlex.join([*own_command(), "prove", "--cache", str(self.store.root)])

    def artifact(self, graph: Graph) -> Artifact:
        """A graph's artifact, checked. Raises MissingGraphsError for one that was not looked up, is damaged, or was
        disproven since."""
        entry = next((item.entry for item in self.items if graph in (item.graph, item.made)), None)
        if entry is None:
            raise MissingGraphsError(f"{graph.name} is not among the run's graphs", hint=self.build_command)
        verdict = self.store.verdict(entry)
        if verdict is not None and verdict.state == "disproven":
            raise MissingGraphsError(f"{graph.name} has no artifact that is right: {verdict.text}")
        return self.store.open(entry)

    def estimate_ns(self, graph: Graph) -> int | None:
        """The compiler's estimate of a call's device time, of a graph or a way's graph; None where it gave none."""
        entry = next((item.entry for item in self.items if graph in (item.made, item.graph)), None)
        return None if entry is None else entry.facts.estimate_ns

    def estimates(self) -> dict[str, int]:
        """Estimated nanoseconds of device time of a call, by graph, all calls of its way together."""
        found = ((item, self.estimate_ns(item.made)) for item in self.items)
        return {item.graph.name: item.calls * estimate for item, estimate in found if estimate is not None}

    def as_json(self) -> list[dict[str, Any]]:
        """Name, program, key and artifact digest of every graph, for RUN/environment.json."""
        return [
            {
                "graph": item.graph.name,
                "way": item.made.name,
                "calls": item.calls,
                "state": item.state,
                "why": item.reason,
                "proof": "unproven" if item.verdict is None else item.verdict.state,
                "program": item.program,
                "key": None if item.entry is None else item.entry.key.digest,
                "artifact": None if item.entry is None else item.entry.artifact_digest,
            }
            for item in self.items
        ]


def _lines(items: Sequence[PlanItem]) -> list[str]:
    texts = ["nobody has tried" if item.verdict is None else item.verdict.reason for item in items]
    lines = [f"  {item.graph.name}: {text}" for item, text in zip(items, texts, strict=True)]
    return [*lines[:LISTED], *([f"  and {len(lines) - LISTED} more"] if len(lines) > LISTED else [])]


def catalogs(config: RunConfig) -> list[str]:
    """The catalogs whose graphs a run takes from the cache."""
    model = () if config.eager_layers else MODEL_CATALOGS
    return [*model, *(["adamw"] if config.resident_layers else [])]


def find_graphs(checkpoint: InputCheckpoint, config: RunConfig) -> CachedGraphs:
    """Look up every graph of the run: of the first step, of later ones and of the last, partial one.

    All steps call the same graphs, since a sequence or micro-batch that is not full is padded. Raises ToolchainError
    when the installed runtime is none that artifacts could be for.
    """
    names = catalogs(config)
    root = cache_dir(config.cache)
    store = open_store(root, remote_urls(config.remote), trust=config.trust)
    graphs = list_graphs(names, checkpoint.table, checkpoint.config_json, config.catalog_options).graphs
    if not graphs:
        return CachedGraphs(store, (), "")
    with memo_of(root) as memo:
        toolchain: Mapping[str, str] = runtime_parts(config.fusion, memo)
        items = look_up(graphs, store=store, toolchain=toolchain)
        count(items, memo)
    return CachedGraphs(store, items, _build_command(config, names))


def _build_command(config: RunConfig, names: Sequence[str]) -> str:
    chosen = config.catalog_options
    return build_command(
        str(config.model),
        names,
        options={"sequence": chosen.sequence, "micro_batch": chosen.micro_batch, "dtype": chosen.dtype},
        fusion=config.fusion,
        cache=config.cache,
        remotes=config.remote,
    )
