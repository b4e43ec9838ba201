"""What is there and what is missing: each graph with its program, its artifact, and the reason when it has none.

Reading only: nothing is exported, compiled or written here (a damaged object that is met on the way is quarantined, as
by any look-up). The reason is recorded where it is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from graphcache.errors import headline
from graphcache.graph import Graph
from graphcache.key import Key, parts_of
from graphcache.proof.verdict import Verdict
from graphcache.source.hash import SourceHash, SourceHashes
from graphcache.store.base import Entry, Failure, Store, Wanted
from graphcache.store.find import find
from graphcache.store.programs import Programs, question_digest

_log = logging.getLogger(__name__)

State = Literal["ready", "missing", "failed", "disproven", "unknown"]


@dataclass(frozen=True)
class PlanItem:
    """One graph.

    state:   `ready`: its artifact is in the store. `missing`: it is not. `failed`: nor could it be, the compiler
             refused this very key before. `disproven`: it is in the store and computes the wrong thing, so nothing may
             use it. `unknown`: nobody remembers its program, so it has to be exported first.
    reason:  why it is not ready, for people; empty when it is
    key:     what it is compiled under by the toolchain that was given; None while its program is unknown
    entry:   the store's, when it is ready; its key may have parts that only a builder sees besides those of `key`
    failure: the last failed compile of `key`, whether it is worth another try or not
    verdict: on the artifact of `entry`, or on the one that is disproven
    """

    graph: Graph
    source: SourceHash
    state: State
    reason: str
    key: Key | None = None
    entry: Entry | None = None
    failure: Failure | None = None
    verdict: Verdict | None = None

    @property
    def program(self) -> str | None:
        return None if self.key is None else self.key.program


def plan(
    graphs: Iterable[Graph], *, sources: SourceHashes, programs: Programs, toolchain: Mapping[str, str], store: Store
) -> list[PlanItem]:
    """One item a graph, in the order given. `toolchain` are the fields of the key that this machine sees.

    What `store` lacks it is asked to bring from where it may look further: first programs, then artifacts, all at once.
    Raises SourceError when a graph's source cannot be read.
    """
    items = [_item(graph, sources.of(graph.function), programs, toolchain, store) for graph in graphs]
    torch = toolchain.get("torch")
    unknown = [item for item in items if item.key is None]
    if torch and store.bring_answers([question_digest(i.source.digest, i.graph, torch) for i in unknown]):
        items = [_item(i.graph, i.source, programs, toolchain, store) if i.key is None else i for i in items]
    if store.bring([wanted(i.graph, i.key, toolchain) for i in items if i.key and i.entry is None]):
        items = [_item(i.graph, i.source, programs, toolchain, store) if i.entry is None else i for i in items]
    for item in items:
        _log.debug("%s %s", "hit " if item.entry else "miss", _said(item))
    return items


def _said(item: PlanItem) -> str:
    if item.entry is None or item.key is None:
        return f"{item.graph.name}: {item.reason}"
    return f"{item.graph.name}: artifact {item.entry.artifact_digest}, key {item.key.digest}"


def wanted(graph: Graph, key: Key, toolchain: Mapping[str, str]) -> Wanted:
    """What is looked for when `graph` needs an artifact of `key`."""
    return Wanted(key, parts_of(toolchain, graph.settings))


def _item(graph: Graph, source: SourceHash, programs: Programs, toolchain: Mapping[str, str], store: Store) -> PlanItem:
    torch = toolchain.get("torch")
    if torch is None:
        return PlanItem(graph, source, "unknown", "torch is not installed, so its program cannot be told")
    program = programs.known(source.digest, graph, torch)
    if program is None:
        return PlanItem(graph, source, "unknown", "this source was not exported yet")
    return of_program(programs.settled(source.digest, graph, torch), source, program, toolchain, store)


def of_program(graph: Graph, source: SourceHash, program: str, toolchain: Mapping[str, str], store: Store) -> PlanItem:
    """The item of a graph whose program is known."""
    key = Key.of(program, toolchain, graph.settings)
    found = find(store, program, parts_of(toolchain, graph.settings))
    if found.entry is not None:
        return PlanItem(graph, source, "ready", "", key, found.entry, verdict=store.verdict(found.entry))
    if found.disproven is not None:
        return PlanItem(graph, source, "disproven", found.disproven.text, key, verdict=found.disproven)
    failure = store.failure(key)
    if failure is not None and failure.is_final:
        return PlanItem(graph, source, "failed", f"failed before: {headline(failure.cause)}", key, None, failure)
    return PlanItem(graph, source, "missing", found.reason, key, None, failure)
