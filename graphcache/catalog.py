"""Catalogs: from a tensor table and a model's config to the graphs that a training run calls.

A catalog is a function named in the entry point group `graphcache.catalogs`, so that other packages can add theirs:

    def catalog(table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing

It must not import torch: diff and the trainer's preflight call it on every start. Keyword parameters are options of its
own (`graphcache.own_options`). One that needs no checkpoint is given an empty table, and None for the config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from graphcache.errors import GraphcacheError, UsageError
from graphcache.graph import Graph, Listing
from graphcache.own_options import Value, typed

if TYPE_CHECKING:
    from graphcache.header.table import TensorTable

GROUP = "graphcache.catalogs"


@dataclass(frozen=True)
class CatalogOptions:
    """Choices that enter signatures; the defaults are what `docs/results/` measured as best.

    tile_elements: an AdamW call covers at most this many elements of a weight
    sequence:      tokens in one sequence
    micro_batch:   sequences in one micro-batch
    dtype:         weights and activations on the device: `bfloat16` or `float32` (master state is always float32)
    own:           options that single catalogs have: (`lora.rank`, 16), sorted by name
    """

    tile_elements: int = 8_388_608
    sequence: int = 512
    micro_batch: int = 1
    dtype: str = "bfloat16"
    own: tuple[tuple[str, Value], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """By name; those of single catalogs by `catalog.option`."""
        shared = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "own"}
        return {**shared, **dict(self.own)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CatalogOptions:
        """The reverse of `as_json`; what it lacks is the default."""
        own = sorted(each for each in value.items() if "." in each[0])
        return cls(**{name: each for name, each in value.items() if "." not in name}, own=tuple(own))

    def of(self, catalog: str) -> dict[str, Value]:
        """The options that `catalog` has of its own, as far as they are given."""
        return {name.rpartition(".")[2]: value for name, value in self.own if name.rpartition(".")[0] == catalog}


Catalog = Callable[..., Listing]


class CatalogError(GraphcacheError):
    """A catalog whose entry point leads nowhere, that fails, or that lists what another one lists too."""

    name = "catalog"


def names() -> list[str]:
    """The catalogs that are installed, sorted."""
    return sorted(_installed())


def select(only: Iterable[str]) -> list[str]:
    """The catalogs that `--only` names, in its order; all that are installed, sorted, when it names none.

    Raises UsageError, listing the ones there are, for an unknown name.
    """
    installed = names()
    for name in only:
        if name not in installed:
            raise _unknown(name)
    return list(dict.fromkeys(only)) or installed


def load(name: str) -> Catalog:
    """The catalog called `name`. Raises UsageError for an unknown one, CatalogError where it cannot be imported."""
    target = _installed().get(name)
    if target is None:
        raise _unknown(name)
    module, _, attribute = target.partition(":")
    try:
        catalog: Catalog = getattr(import_module(module), attribute)
    except Exception as error:  # whatever its module raises
        raise CatalogError(
            f"the catalog {name!r} names {target}, which cannot be imported: {_said(error, target)}",
            hint="install the package that has it again, or leave it out with --only",
        ) from error
    return catalog


def list_one(name: str, table: TensorTable, config: Mapping[str, Any] | None, options: CatalogOptions) -> Listing:
    """What one catalog lists. Raises its own GraphcacheError, CatalogError for whatever else it raises, and UsageError
    for options that it does not have."""
    catalog = load(name)
    own = typed(name, catalog, options.of(name))
    try:
        listing = catalog(table, config, options, **own)
    except GraphcacheError:
        raise
    except Exception as error:  # a fault of whoever wrote the catalog
        said = _said(error, _installed().get(name, ""))
        raise CatalogError(f"the catalog {name!r} failed: {said}", hint="leave it out with --only") from error
    if not isinstance(listing, Listing):
        raise CatalogError(f"the catalog {name!r} returned {type(listing).__name__}, not a graphcache.Listing")
    return listing


def _said(error: Exception, target: str) -> str:
    """The error, and the last line of the catalog's own package that led to it."""
    package = target.partition(":")[0].partition(".")[0]
    frames = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == package
    ]
    place = f" at {frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" at {error.filename}:{error.lineno}"
    return f"{type(error).__name__}: {error}{place}"


def functions(only: Iterable[str]) -> list[str]:
    """The functions of catalogs, `package.module:name`; one that is not installed has none."""
    installed = _installed()
    return [installed[name] for name in only if name in installed]


def _unknown(name: str) -> UsageError:
    return UsageError(f"no catalog is called {name!r}", hint=f"installed catalogs: {', '.join(names()) or 'none'}")


def may_be_called(graph: Graph) -> bool:
    """Whether a graph that was read from a store, where others may write, may be run here.

    Its function has to be of a package that has a catalog installed, and to be given a tensor: an entry that names
    `os:system`, with a command as its constant, is not run. What comes from a catalog itself needs no such question.
    """
    packages = {target.partition(":")[0].partition(".")[0] for target in _installed().values()}
    return graph.function.partition(":")[0].partition(".")[0] in packages and bool(graph.args)


@cache
def _installed() -> dict[str, str]:
    """Name to `module:function`, from the entry points of every installed package."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def list_graphs(
    only: Iterable[str],
    table: TensorTable,
    config: Mapping[str, Any] | None,
    options: CatalogOptions,
) -> Listing:
    """The listings of several catalogs as one, in the order of `only`.

    Raises CatalogError for two graphs of one name: everything from here on tells graphs by their names.
    """
    listings = {name: list_one(name, table, config, options) for name in only}
    listed_by: dict[str, str] = {}
    for catalog, listing in listings.items():
        for graph in listing.graphs:
            if graph.name in listed_by:
                raise CatalogError(
                    f"two graphs are called {graph.name!r}: of the catalogs {listed_by[graph.name]!r} and {catalog!r}",
                    hint="choose one of the catalogs with --only, or rename the graph in one",
                )
            listed_by[graph.name] = catalog
    return Listing(
        tuple(graph for listing in listings.values() for graph in listing.graphs),
        tuple(use for listing in listings.values() for use in listing.uses),
    )


def check_any_graphs(listing: Listing, only: Iterable[str]) -> None:
    """Raises UsageError for an empty listing: a command that has nothing to do for a model was given the wrong one."""
    if not listing.graphs:
        raise UsageError(
            f"the catalogs {', '.join(only) or 'none'} list no graph for these tensors",
            hint="name a model with --shapes-from; `graphcache shapes MODEL` shows what each catalog lists for it",
        )
