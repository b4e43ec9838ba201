"""From a graph to its program: what torch exports, in a canonical form whose digest is the program's identity.

The canonical form keeps what a compiler can see: operators in the order of their calls, what each one reads, dtypes
and shapes, and the content of constants. It drops names of variables, stack traces and modules, so two sources that
compute the same thing in the same steps are one program. The compiler is given stack traces all the same: it quotes
them in its errors, and a test with each version shows that they do not reach its bytes.

As a command it answers for `diff`, which imports no torch: one graph's JSON a line in, one line of JSON a graph out.
After an answer that is the `last` it ends, since nothing that it would export could be relied on: ask a new process.

    python -m graphcache.export.program <graphs.jsonl
    {"outputs": [...], "program": "5f0c...", "settings": {...}, "source": "9b31..."}
    {"error": {"hint": "", "message": "...", "name": "export"}, "last": false}
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from graphcache.digest import json_sha256
from graphcache.errors import GraphcacheError, SpoiledError
from graphcache.export.recommend import recommended
from graphcache.export.source_lines import noted
from graphcache.export.torch_state import unchanged
from graphcache.graph import Graph, TensorSpec
from graphcache.key import PROGRAM_FORMAT
from graphcache.process.helper import take_stdout
from graphcache.source.hash import digest_now


class ExportError(GraphcacheError):
    """A graph that cannot be exported, or whose program has no canonical form."""

    name = "export"


@dataclass(frozen=True)
class Exported:
    """program: the digest of the canonical form; module: what the compiler gets; outputs: results by position;
    settings: the graph's own, or those recommended for the program."""

    program: str
    module: ExportedProgram
    outputs: tuple[TensorSpec, ...]
    settings: Mapping[str, str]


def export(graph: Graph) -> Exported:
    """Exports `graph`. Reads no weights: its arguments are uninitialized memory of the right shapes.

    Raises ExportError, whatever went wrong in the graph's own code; SpoiledError when that changed torch's global
    state: this process is to export no other graph then.
    """
    with unchanged(f"{graph.name}: importing {graph.function}"):
        function = load_function(graph)
    with unchanged(f"{graph.name}: calling {graph.function}"):
        module = _export(graph, function)
    settings = recommended(module) if graph.settings is None else graph.settings
    return Exported(json_sha256(canonical(module)), module, _outputs(module), settings)


def _export(graph: Graph, function: Callable[..., Any]) -> ExportedProgram:
    args = tuple(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in graph.args)
    try:
        with noted(_Call.forward.__code__.co_filename):
            return torch.export.export(_Call(function), args, strict=False)
    except Exception as error:  # whatever a graph's code, or torch's tracing of it, raises
        raise ExportError(
            f"{graph.name} ({graph.function}) cannot be exported: {type(error).__name__}: {error}",
            hint="a graph is a pure function of tensors: no Python branch on a tensor's values, no numpy, no printing",
        ) from error


def load_function(graph: Graph) -> Callable[..., Any]:
    """The graph's function with its constants bound: `f(*tensors)`. Raises ExportError when it is not there."""
    try:
        function = graph.load_function()
    except Exception as error:  # importing runs the module's code, which can raise anything
        raise ExportError(
            f"{graph.name}: {graph.function} cannot be imported: {type(error).__name__}: {error}",
            hint="the package of the catalog that lists it has to be installed, or on PYTHONPATH",
        ) from error
    return functools.partial(function, **graph.constants)


class _Call(torch.nn.Module):
    """A function as the module that torch.export wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def canonical(module: ExportedProgram) -> dict[str, Any]:
    """The program as JSON. Raises ExportError for what has no canonical form: symbolic sizes, foreign objects."""
    specs = module.graph_signature.input_specs
    return {
        "format": PROGRAM_FORMAT,
        "inputs": [
            {"kind": spec.kind.name, "content": _constant(module, spec.target)}
            for spec in specs
            if spec.kind is not InputKind.USER_INPUT
        ],
        "outputs": [_output_kind(spec.kind) for spec in module.graph_signature.output_specs],
        "graph": _graph(module.graph_module),
    }


def _output_kind(kind: OutputKind) -> str:
    if kind is not OutputKind.USER_OUTPUT:
        raise ExportError(
            f"the graph changes something besides its results ({kind.name})", hint="return new tensors instead"
        )
    return kind.name


def _constant(module: ExportedProgram, target: str | None) -> Any:
    """The content of a tensor that the function closes over."""
    value = module.constants.get(target or "", module.state_dict.get(target or ""))
    return _tensor(value) if isinstance(value, torch.Tensor) else _value(value, {})


def _graph(graph_module: GraphModule) -> list[Any]:
    """The nodes in their order, each `[op, target, args, kwargs, result]`, referring to others by position."""
    places = {node: place for place, node in enumerate(graph_module.graph.nodes)}
    return [_node(graph_module, node, places) for node in places]


def _node(graph_module: GraphModule, node: Node, places: dict[Node, int]) -> list[Any]:
    result = _value(node.meta.get("val"), places)
    if node.op == "placeholder":
        return [node.op, result]
    if node.op == "get_attr":
        return [node.op, _attribute(graph_module, str(node.target))]
    kwargs = [[name, _value(value, places)] for name, value in sorted(node.kwargs.items())]
    return [node.op, _target(node), _value(node.args, places), kwargs, result]


def _target(node: Node) -> str:
    """The operator's full name; `repr` of a plain function would hold its address."""
    target = node.target
    if isinstance(target, str | torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return str(target)
    return f"{target.__module__}.{target.__qualname__}"


def _attribute(graph_module: GraphModule, path: str) -> Any:
    value = functools.reduce(getattr, path.split("."), graph_module)
    return ["graph", _graph(value)] if isinstance(value, GraphModule) else _value(value, {})


def _value(value: Any, places: dict[Node, int]) -> Any:
    """An argument or a result as JSON that tells 1, 1.0, True and "1" apart."""
    match value:
        case Node():
            return ["node", places[value]]
        case torch.fx.immutable_collections.immutable_list() | list() | tuple() | torch.Size():
            return ["list", [_value(item, places) for item in value]]
        case dict():
            return ["dict", [[str(name), _value(item, places)] for name, item in sorted(value.items())]]
        case slice():
            return ["slice", [_value(item, places) for item in (value.start, value.stop, value.step)]]
        case torch._subclasses.FakeTensor():
            return ["tensor", _dtype(value), list(map(_size, value.shape)), list(map(_size, value.stride()))]
        case torch.Tensor():
            return _tensor(value)
        case float():
            return ["float", value.hex()] if math.isfinite(value) else ["float", repr(value)]
        case None | bool() | int() | str():
            return value
        case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
            return [type(value).__name__, str(value)]
        case _:
            raise ExportError(f"a program cannot hold {value!r} of type {type(value).__name__}")


def _size(size: Any) -> int:
    if type(size) is not int:
        raise ExportError(f"the program has a symbolic size {size}", hint="a graph's shapes are all known beforehand")
    return size


def _tensor(tensor: torch.Tensor) -> list[Any]:
    """A constant by its content: dtype, shape and the SHA-256 of its elements in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    content = hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()
    return ["constant", _dtype(tensor), list(map(_size, tensor.shape)), content]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _outputs(module: ExportedProgram) -> tuple[TensorSpec, ...]:
    (results,) = module.graph.output_node().args
    assert isinstance(results, tuple | list)
    values = [node.meta.get("val") if isinstance(node, Node) else node for node in results]
    return tuple(_output(i, value) for i, value in enumerate(values))


def _output(position: int, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise ExportError(f"a graph returns tensors; result {position} is {value!r}")
    return TensorSpec(f"out{position}", _dtype(value), tuple(value.shape))


def answers(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """For each graph's JSON: its program, results and source hash, or the error that it met; none after the `last`."""
    for line in lines:
        graph = Graph.from_json(json.loads(line))
        try:
            exported = export(graph)
            outputs = [spec.as_json() for spec in exported.outputs]
            found = {"program": exported.program, "outputs": outputs, "settings": dict(exported.settings)}
            yield {**found, "source": digest_now(graph.function)}
        except GraphcacheError as error:
            last = isinstance(error, SpoiledError)
            yield {"error": error.as_json(), "last": last}
            if last:
                return


def main() -> int:
    replies = io.TextIOWrapper(take_stdout())
    torch.set_num_threads(1)
    for answer in answers(sys.stdin):
        print(json.dumps(answer, sort_keys=True), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
