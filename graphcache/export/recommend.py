"""The compiler settings for a graph that has none of its own, by what its program does.

Measured with the vendor's compiler (docs/compiler-workarounds.md, "Settings by content"), in this order:

products         a program that multiplies matrices: `compute-bound`, and four layouts for each operator. Where a matrix
                 has fewer than 4,096 elements that hint leaves the compiler no way at all, so none is given. Factors
                 in float32 are not rounded to bfloat16, which the compiler does by default.
data movement    a program that puts the parts of rows into another order, as a rotary embedding does: `compute-bound`
rows, the rest   norms, softmax, what is elementwise: the compiler's own choice, which the hint makes slower
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

PRODUCTS = {"tactic": "compute-bound", "unique-shapes": "4"}
MOVEMENT = {"tactic": "compute-bound"}
IN_FLOAT32 = {"implicit-casts": "off"}
SMALL_ELEMENTS = 4_096

_PRODUCTS = frozenset(
    "mm bmm addmm baddbmm matmul linear mv addmv dot einsum conv1d conv2d convolution".split()  # noqa: SIM905
)


def recommended(module: ExportedProgram) -> dict[str, str]:
    """The settings; a function of the program alone, so that equal programs are compiled alike."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    products = [node for node in calls if _name(node) in _PRODUCTS]
    if products:
        casts = IN_FLOAT32 if any(_is_float32(node) for node in products) else {}
        return {**({} if _smallest(module) < SMALL_ELEMENTS else PRODUCTS), **casts}
    return dict(MOVEMENT) if any(_reorders_rows(node) for node in calls) else {}


def _name(node: Node) -> str:
    """`mm` of `aten.mm.default`; empty for what is no operator of aten."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return ""
    return str(target._schema.name).partition("::")[2]


def _is_float32(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _smallest(module: ExportedProgram) -> int:
    """Elements of the smallest matrix that the program is given."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    sizes = [math.prod(value.shape) for value in values if isinstance(value, Tensor) and value.dim() > 1]
    return min(sizes, default=SMALL_ELEMENTS)


def _reorders_rows(node: Node) -> bool:
    """Whether slices of one tensor are joined again along the last of two or more dimensions."""
    value = node.meta.get("val")
    if _name(node) != "cat" or not isinstance(value, Tensor) or value.dim() < 2:
        return False
    pieces, *rest = node.args
    dim = node.kwargs.get("dim", rest[0] if rest else 0)
    if not isinstance(pieces, list | tuple) or not isinstance(dim, int) or dim % value.dim() != value.dim() - 1:
        return False
    sources = {_sliced(piece) for piece in pieces if isinstance(piece, Node)}
    return len(pieces) > 1 and len(sources) == 1 and None not in sources


def _sliced(node: Node) -> Node | None:
    """What a slice, or slice of slices, is of; None for what is none."""
    found: Node | None = None
    while _name(node) == "slice" and isinstance(node.args[0], Node):
        node = found = node.args[0]
    return found
