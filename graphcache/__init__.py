"""A content-addressed cache of compiled graphs for FuriosaAI RNGD cards.

The names below are the public ones; docs/library.md has a page on them, and CHANGELOG.md says when one changes. All
others, modules included, are internal and change without a word.

Nothing is imported before it is used, and torch by none of these names: planning, diff, look-up and verification of
bytes need the standard library, xxhash and diskcache. What exports or compiles runs in processes of its own; what
calls an artifact imports torch when it loads one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcache.build.report import Listener, Outcome, Report
    from graphcache.cache import Cache
    from graphcache.catalog import CatalogError, CatalogOptions, list_graphs
    from graphcache.errors import (
        CorruptError,
        GraphcacheError,
        MissingGraphsError,
        StoreError,
        ToolchainError,
        UsageError,
    )
    from graphcache.graph import Graph, Listing, TensorSpec, Use
    from graphcache.header.table import TensorTable, read_config, read_table
    from graphcache.manifest.diff import Comparison
    from graphcache.marks.marked import Compiled, compiled
    from graphcache.marks.recorded import record
    from graphcache.plan import PlanItem
    from graphcache.runtime.host_graph import HostGraph

    __version__: str

# Where each public name is. None of them is a module's name, which an import of that module would put in its place.
_PLACES = {
    "Cache": "graphcache.cache",
    "CatalogError": "graphcache.catalog",
    "CatalogOptions": "graphcache.catalog",
    "Comparison": "graphcache.manifest.diff",
    "Compiled": "graphcache.marks.marked",
    "CorruptError": "graphcache.errors",
    "Graph": "graphcache.graph",
    "GraphcacheError": "graphcache.errors",
    "HostGraph": "graphcache.runtime.host_graph",
    "Listener": "graphcache.build.report",
    "Listing": "graphcache.graph",
    "MissingGraphsError": "graphcache.errors",
    "Outcome": "graphcache.build.report",
    "PlanItem": "graphcache.plan",
    "Report": "graphcache.build.report",
    "StoreError": "graphcache.errors",
    "TensorSpec": "graphcache.graph",
    "TensorTable": "graphcache.header.table",
    "ToolchainError": "graphcache.errors",
    "UsageError": "graphcache.errors",
    "Use": "graphcache.graph",
    "compiled": "graphcache.marks.marked",
    "list_graphs": "graphcache.catalog",
    "read_config": "graphcache.header.table",
    "read_table": "graphcache.header.table",
    "record": "graphcache.marks.recorded",
}

__all__ = [
    "Cache",
    "CatalogError",
    "CatalogOptions",
    "Comparison",
    "Compiled",
    "CorruptError",
    "Graph",
    "GraphcacheError",
    "HostGraph",
    "Listener",
    "Listing",
    "MissingGraphsError",
    "Outcome",
    "PlanItem",
    "Report",
    "StoreError",
    "TensorSpec",
    "TensorTable",
    "ToolchainError",
    "UsageError",
    "Use",
    "__version__",
    "compiled",
    "list_graphs",
    "read_config",
    "read_table",
    "record",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("graphcache")
    if name not in _PLACES:
        raise AttributeError(f"module 'graphcache' has no public name {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
