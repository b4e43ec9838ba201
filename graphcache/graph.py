"""What a graph is before anything is exported: a function, its argument shapes and dtypes, its compiler settings."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from graphcache.digest import json_sha256

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}


@dataclass(frozen=True)
class TensorSpec:
    """One argument or result: `dtype` is torch's name without the module (`float32`), `shape` a tuple of sizes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TensorSpec:
        return cls(value["name"], value["dtype"], tuple(value["shape"]))


@dataclass(frozen=True)
class Graph:
    """A pure function of tensors with the shapes and dtypes that it is compiled for.

    name:      unique within a model, short, for people: `adamw[8388608]`
    catalog:   the catalog that listed it (`adamw`, `head`, `layer`): what `--only` selects by
    function:  `package.module:name` of a module-level function `f(*tensors, **constants)` that returns a tensor or
               a tuple of tensors; a module, not a path, so that a moved checkout changes nothing
    args:      its tensor arguments, in order
    constants: keyword arguments that are fixed in the program (JSON values): `{"heads": 9}`
    settings:  compiler settings chosen for this graph by measurement, in the toolchain's neutral words
               (`graphcache.toolchain.base`): `{"tactic": "compute-bound"}`; `{}` is the compiler's own choice. None:
               what is recommended for what the program does (`graphcache.export.recommend`), known once it is exported
    by_content: whether `settings` were found so, and not given
    ways:      other forms that do (`graphcache.way`), in the order in which a builder tries them after this one. No
               part of what the graph is: an entry or a manifest keeps the one that was compiled
    """

    name: str
    catalog: str
    function: str
    args: tuple[TensorSpec, ...]
    _: KW_ONLY
    constants: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    by_content: bool = False
    ways: tuple[Way, ...] = field(default=(), compare=False, repr=False)

    def load_function(self) -> Callable[..., Any]:
        """`function` itself, constants not bound. Importing its module runs code that can raise anything.

        Of one that `graphcache.compiled` marks, which would look for an artifact, the function that was marked.
        """
        module, _, name = self.function.partition(":")
        found = getattr(importlib.import_module(module), name)
        function: Callable[..., Any] = getattr(found, "__graphcache_function__", found)
        return function

    def signature(self) -> dict[str, Any]:
        """What the exported program depends on besides the source: argument dtypes and shapes, constants.

        Argument names are left out: renaming an argument in a catalog changes no program.
        """
        return {
            "args": [[a.dtype, list(a.shape)] for a in self.args],
            "constants": dict(self.constants),
        }

    def with_recommended(self, settings: Mapping[str, str]) -> Graph:
        """This graph with the settings that are recommended for its program, unless it has its own."""
        return replace(self, settings=dict(settings), by_content=True) if self.settings is None else self

    def without_recommended(self) -> Graph:
        """This graph as it was before its program was known."""
        return replace(self, settings=None, by_content=False) if self.by_content else self

    def signature_digest(self) -> str:
        return json_sha256(self.signature())

    def identity_digest(self) -> str:
        """SHA-256 of what is compiled and how, whatever its name: function, signature, settings."""
        return json_sha256([self.function, self.signature(), dict(self.settings or {})])

    @property
    def shapes(self) -> str:
        """The arguments' shapes for people, equal neighbours once: `4*8388608 9*1`, `128x576 3072x576`."""
        each = ("x".join(map(str, spec.shape)) or "scalar" for spec in self.args)
        runs = ((shape, len(list(run))) for shape, run in groupby(each))
        return " ".join(shape if count == 1 else f"{count}*{shape}" for shape, count in runs)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "catalog": self.catalog,
            "function": self.function,
            "args": [a.as_json() for a in self.args],
            "constants": dict(self.constants),
            "settings": None if self.settings is None else dict(self.settings),
            **({"by_content": True} if self.by_content else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Graph:
        return cls(
            value["name"],
            value["catalog"],
            value["function"],
            tuple(TensorSpec.from_json(a) for a in value["args"]),
            constants=dict(value["constants"]),
            settings=None if value["settings"] is None else dict(value["settings"]),
            by_content=value.get("by_content", False),
        )


@dataclass(frozen=True)
class Combined:
    """How a result of each of a way's calls becomes one result of the graph.

    how:      `join`: the calls' rows one under another, by `graph`, which takes all of them flat and in order
              `sum`:  added up in the order of the calls, by `graph`, which takes two
              `carry`: the next call takes it as its argument number `argument`, and the last call's is the result
    """

    how: Literal["join", "sum", "carry"]
    graph: Graph | None = None
    argument: int | None = None


@dataclass(frozen=True)
class Way:
    """One form of a graph.

    graph:   what is compiled and called; without ways of its own
    calls:   how often, for one call of the graph. An argument of another shape than the graph's has a `calls`th of its
             rows, and each call takes the next ones; all others are the same in each call
    results: for more than one call, one for each result of `graph`
    """

    graph: Graph
    calls: int = 1
    results: tuple[Combined, ...] = ()

    def as_json(self) -> dict[str, Any]:
        results = [
            {"how": each.how, "graph": each.graph and each.graph.as_json(), "argument": each.argument}
            for each in self.results
        ]
        return {"graph": self.graph.as_json(), "calls": self.calls, "results": results}

    @property
    def needs(self) -> tuple[Graph, ...]:
        """The graphs that are called besides, each once."""
        found = {each.graph.name: each.graph for each in self.results if each.graph is not None}
        return tuple(found.values())

    def __str__(self) -> str:
        return self.graph.name if self.calls == 1 else f"{self.calls} calls of {self.graph.name}"


@dataclass(frozen=True)
class Use:
    """A training step calls `graph` `calls` times for each of `count` places (`what` names them for people)."""

    graph: str
    what: str
    count: int
    calls: int

    def as_json(self) -> dict[str, Any]:
        return {"graph": self.graph, "what": self.what, "count": self.count, "calls": self.calls}


def calls_by_graph(uses: Iterable[Use]) -> Counter[str]:
    """How often a step of one micro-batch, every layer resident, calls each graph, by its name."""
    calls: Counter[str] = Counter()
    for use in uses:
        calls[use.graph] += use.count * use.calls
    return calls


@dataclass(frozen=True)
class Listing:
    """What a catalog returns: graphs, in a stable order and without duplicates, and who calls them."""

    graphs: tuple[Graph, ...]
    uses: tuple[Use, ...]
