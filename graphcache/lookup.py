"""What a training run asks of the cache: its graphs' artifacts, or all that is missing at once. Never compiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from graphcache.errors import MissingGraphsError
from graphcache.graph import Graph
from graphcache.local.memo import Memo
from graphcache.local.usage import Ledger
from graphcache.manifest.manifest import Manifest, known_programs
from graphcache.plan import PlanItem, plan
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs

__all__ = ["PlanItem", "count", "entries", "look_up"]

# Graphs that an error lists; the rest is a count.
LISTED = 20


def look_up(
    graphs: Iterable[Graph], *, store: LocalStore, toolchain: Mapping[str, str], manifests: Iterable[Manifest] = ()
) -> list[PlanItem]:
    """One item a graph, in the order given, by the best of its ways that the store has, or with the reason why not;
    then one for each graph that those ways need besides.

    toolchain: what this machine sees of a key's fields (`graphcache.runtime`), torch's version among them
    manifests: committed ones know programs too, where the cache was not filled from this very source

    Raises SourceError when a graph's source cannot be read.
    """
    programs = Programs(store.root, known_programs(manifests), guard=store.guard)
    sources = SourceHashes(WorkTree())
    return plan(graphs, sources=sources, programs=programs, toolchain=toolchain, store=store, choice="best")


def count(items: Iterable[PlanItem], memo: Memo) -> None:
    """Remembers these as uses of what was found, and as misses of what was not, for stats and gc."""
    found = list(items)
    ledger = Ledger(memo)
    ledger.record(item.entry.key.digest for item in found if item.entry is not None)
    ledger.record_misses((item.graph.catalog, item.miss) for item in found if item.miss is not None)


def entries(items: Sequence[PlanItem], *, command: str, troubles: Sequence[str] = ()) -> dict[str, Entry]:
    """Entry by graph name. Raises MissingGraphsError, with each reason and the `command` that fills the cache.

    troubles: why the store did not look everywhere that it was to (`LocalStore.troubles`)
    """
    missing = [item for item in items if item.entry is None]
    if missing:
        lines = [f"  {item.graph.name}: {item.reason}" for item in missing[:LISTED]]
        more = [f"  and {len(missing) - LISTED} more"] if len(missing) > LISTED else []
        raise MissingGraphsError(
            f"{len(missing)} of {len(items)} graphs are not in the cache",
            details=[*lines, *more, *troubles],
            hint=f"on a node with the compiler: {command}",
        )
    return {item.graph.name: item.entry for item in items if item.entry is not None}
