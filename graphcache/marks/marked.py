"""Functions marked as graphs: called like functions, and what runs is the artifact.

    @compiled("t h", "o h", dtype="bfloat16")
    def project(x, w):
        return x @ w.t()

A call makes a `Graph` of the function with the shapes and dtypes of its arguments, and runs that graph's artifact from
the usual cache. A graph that is not there is an error with the command that builds it; nothing compiles but by `build`.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graphcache.cache import Cache
from graphcache.digest import canonical_json
from graphcache.errors import UsageError
from graphcache.graph import ITEM_BYTES, Graph, TensorSpec
from graphcache.marks.recorded import add_call, is_recording
from graphcache.process.own_command import own_command

if TYPE_CHECKING:
    from torch import Tensor

    from graphcache.build.report import Report
    from graphcache.runtime.host_graph import HostGraph

CATALOG = "marked"


def compiled(
    *args: str, dtype: str = "float32", settings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Compiled]:
    """Marks a function at the top level of a module as a graph.

    args:     the sizes of each tensor argument, as names or numbers: `"t h"`, `"64 h"`, `""` for a scalar; a dtype
              before them goes before `dtype`: `"float32 t h"`. One name is one size throughout a call. None at all: any
              tensors, as a first call or a recorded one has them
    settings: compiler settings; None: what is recommended for the program

    Raises UsageError for a function that no other process could find, and for words that are no sizes.
    """
    return lambda function: Compiled(function, args, dtype, settings)


class Compiled:
    """A function that `compiled` marked. `function` is the function itself, which torch runs eagerly."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[str, ...], dtype: str, settings: Mapping[str, str] | None
    ) -> None:
        self.function = function
        # By which an export, which runs the function, gets past this object.
        self.__graphcache_function__ = function
        self.__doc__ = function.__doc__
        self.name = function.__name__
        if not function.__qualname__.isidentifier():
            raise UsageError(
                f"{function.__qualname__} is not at the top level of a module, so no other process could find it"
            )
        self._settings = settings
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        if args and len(args) != len(names):
            raise UsageError(f"{self.name} takes {len(names)} tensors, and {len(args)} have sizes")
        self._args = tuple(zip(names, (_words(self.name, text, dtype) for text in args), strict=False))
        self._names = names
        self._loaded: dict[str, HostGraph] = {}

    @property
    def module(self) -> str:
        """The module by which other processes import the function, also where it is the script that is run."""
        return _module_name(self.function.__module__)

    def graph(self, *tensors: Tensor | TensorSpec, **constants: Any) -> Graph:
        """The graph of a call with such tensors. Raises UsageError for shapes that are not the function's."""
        if len(tensors) != len(self._names):
            raise UsageError(f"{self.name} takes {len(self._names)} tensors, not {len(tensors)}")
        specs = tuple(_spec(name, tensor) for name, tensor in zip(self._names, tensors, strict=True))
        self._check(specs)
        return self._graph(specs, constants)

    def graphs(self, dims: Mapping[str, int]) -> list[Graph]:
        """The graph for the sizes that the mark gives, names replaced by `dims`; none where a size is not known."""
        if not self._args:
            return []
        sized = [(name, dtype, [dims.get(size, size) for size in sizes]) for name, (dtype, sizes) in self._args]
        if any(isinstance(size, str) and not size.isdigit() for _, _, sizes in sized for size in sizes):
            return []
        return [self._graph(tuple(TensorSpec(n, d, tuple(map(int, sizes))) for n, d, sizes in sized), {})]

    @property
    def dimensions(self) -> set[str]:
        """The names of sizes in the mark."""
        return {size for _, (_, sizes) in self._args for size in sizes if not size.isdigit()}

    def __call__(self, *tensors: Tensor, **constants: Any) -> Any:
        """The artifact's results for CPU tensors: one, or a tuple of several. Under `record` the function's own.

        Raises MissingGraphsError, with the command, for a graph that the cache lacks; UsageError for other tensors than
        the mark allows. Never compiles.
        """
        graph = self.graph(*tensors, **constants)
        if is_recording():
            add_call(graph)
            return self.function(*tensors, **constants)
        if graph.name not in self._loaded:
            self._loaded[graph.name] = Cache().require([graph], command=self._command(graph))[graph.name]
        return self._loaded[graph.name](*tensors)

    def build(self, *tensors: Tensor | TensorSpec, **constants: Any) -> Report:
        """Compiles the graph of such a call where the cache lacks it, as `Cache.build` does."""
        return Cache().build([self.graph(*tensors, **constants)])

    def __repr__(self) -> str:
        return f"<Compiled {self.module}:{self.name}>"

    def _graph(self, specs: tuple[TensorSpec, ...], constants: Mapping[str, Any]) -> Graph:
        function = f"{self.module}:{self.name}"
        bare = Graph("", CATALOG, function, specs, constants=dict(constants), settings=self._settings)
        dtypes = sorted({spec.dtype for spec in specs})
        words = [*dtypes, bare.shapes, *(f"{name}={_plain(value)}" for name, value in sorted(constants.items()))]
        return Graph(
            f"{self.name}[{' '.join(words)}]",
            CATALOG,
            function,
            specs,
            constants=dict(constants),
            settings=self._settings,
        )

    def _check(self, specs: tuple[TensorSpec, ...]) -> None:
        sizes: dict[str, int] = {}
        for spec, (_, (dtype, wanted)) in zip(specs, self._args, strict=False):
            if spec.dtype != dtype or len(spec.shape) != len(wanted):
                raise UsageError(
                    f"{self.name}: {spec.name} is {spec.dtype}{list(spec.shape)}, "
                    f"and its mark says {dtype} [{' '.join(wanted)}]"
                )
            for word, size in zip(wanted, spec.shape, strict=True):
                expected = int(word) if word.isdigit() else sizes.setdefault(word, size)
                if size != expected:
                    raise UsageError(f"{self.name}: {spec.name} has {size} where {word} is {expected}")

    def _command(self, graph: Graph) -> str:
        """A mark without names is enough for a build; else the sizes are given, or a recorded run is."""
        words = [*_where(self.function.__module__), *own_command(), "build", "--from", self.module]
        if graph.constants or not self._args:
            return shlex.join([*words, "--shapes", "FILE"]) + ", with FILE of a run under graphcache.record(FILE)"
        sizes = {
            word: size
            for spec, (_, (_, wanted)) in zip(graph.args, self._args, strict=True)
            for word, size in zip(wanted, spec.shape, strict=True)
            if not word.isdigit()
        }
        return shlex.join([*words, *(part for name, size in sizes.items() for part in ("--dim", f"{name}={size}"))])


def marked_graphs(module: str, dims: Mapping[str, int]) -> list[Graph]:
    """The graphs of a module's marked functions for the sizes given. Imports it, and with it torch.

    Raises UsageError for a module that cannot be imported, for one without a marked function, and for a size that no
    mark names.
    """
    try:
        found = importlib.import_module(module)
    except Exception as error:  # its code can raise anything
        raise UsageError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    marked = [value for value in vars(found).values() if isinstance(value, Compiled) and value.module == module]
    if not marked:
        raise UsageError(f"{module} has no function that graphcache.compiled marks")
    known = set[str]().union(*(each.dimensions for each in marked))
    for name in sorted(dims):
        if name not in known:
            raise UsageError(f"no function of {module} has a size {name!r}", hint=f"sizes: {', '.join(sorted(known))}")
    return [graph for each in marked for graph in each.graphs(dims)]


def _words(function: str, text: str, dtype: str) -> tuple[str, tuple[str, ...]]:
    words = text.split()
    if words and words[0] in ITEM_BYTES:
        dtype, *words = words
    if dtype not in ITEM_BYTES:
        raise UsageError(f"{function}: {dtype!r} is no dtype", hint=f"one of {', '.join(ITEM_BYTES)}")
    for word in words:
        if not (word.isidentifier() or word.isdigit()):
            raise UsageError(f"{function}: {word!r} in {text!r} is neither the name of a size nor a number")
    return dtype, tuple(words)


def _spec(name: str, tensor: Tensor | TensorSpec) -> TensorSpec:
    dtype = tensor.dtype if isinstance(tensor, TensorSpec) else str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(name, dtype, tuple(tensor.shape))


def _plain(value: Any) -> str:
    try:
        return canonical_json(value).decode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"a constant of a graph is a number, a text or a list of them, not {value!r}") from error


def _where(module: str) -> list[str]:
    """What lets the command find a script, which is on no path but its own; none where a module is imported by name."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if module != "__main__" or getattr(main, "__spec__", None) is not None or file is None:
        return []
    return ["env", f"PYTHONPATH={Path(file).absolute().parent}"]


def _module_name(name: str) -> str:
    """The name by which another process can import the module that runs as `__main__`."""
    if name != "__main__":
        return name
    main: ModuleType = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    if file is None:
        raise UsageError("a function that was typed in cannot be found by other processes", hint="put it in a file")
    return Path(file).stem
