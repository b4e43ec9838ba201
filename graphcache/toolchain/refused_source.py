"""Which part of a graph's source the vendor's compiler could not take: the operators it names, the results it drops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch.export import ExportedProgram
from torch.fx import Node

from graphcache.export.source_lines import line_of, operator_at
from graphcache.vendor.layouts import VendorError

# How the vendor's messages name the node that they are about.
_NAMES = re.compile(r'Not importable for all cases, (\w+)|while verifying (\w+)|\bname: "(\w+)#')
# Of a failed part that has more nodes than this, the list says nothing.
_FEW = 3


def blamed(module: ExportedProgram, error: VendorError) -> str:
    """The message, preceded by the operators it is about and their source lines, as far as it names any."""
    found = {next(filter(None, groups)) for groups in _NAMES.findall(str(error))}
    names = found or set(error.nodes[:_FEW] if len(error.nodes) <= _FEW else ())
    operators = [operator_at(node) for node in module.graph.nodes if node.op == "call_function" and node.name in names]
    return f"{'; '.join(operators)}: {error}" if operators else str(error)


def dropped_results(module: ExportedProgram, count: int) -> str:
    """Which results a compiler that drops `count` of them leaves out, with their lines; in general when unclear."""
    (results,) = module.graph.output_node().args
    assert isinstance(results, Sequence)
    found = list(_dropped([node for node in results if isinstance(node, Node)]))
    general = "the others are arguments, views of arguments, or the same as another result"
    return "; ".join(found) if len(found) == count else general


def _dropped(results: Sequence[Node]) -> Iterator[str]:
    for place, node in enumerate(results):
        line = line_of(node)
        where = f" ({line})" if line else ""
        if node in results[:place]:
            yield f"result {place} is the same as result {results.index(node)}{where}"
        elif node.op == "placeholder":
            yield f"result {place} is an argument"
        elif _viewed(node).op == "placeholder":
            yield f"result {place} is a view of an argument{where}"


def _viewed(node: Node) -> Node:
    """What a view is a view of; any other node is its own."""
    while getattr(node.target, "is_view", False) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
