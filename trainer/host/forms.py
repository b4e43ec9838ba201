"""A graph's form on the host: machine code made from its own lines where these go over rows, else the function itself.

One pass over memory on all of torch's threads replaces eager torch's pass an operation with float32 temporaries between
them: docs/results/speed.md has what that gains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from graphcache.graph import Graph
from trainer.host.lanes import modelled
from trainer.host.pages import copy, empty
from trainer.host.row_form import RowForm, threads_are_there
from trainer.host.trace import Input

# Graphs whose arithmetic is over rows: elementwise, and sums and maxima along the last dimension.
ROWWISE = frozenset(
    f"trainer.graphs.{name}"
    for name in (
        "layer:rms_norm",
        "layer:rotate",
        "layer:softmax",
        "layer:softmax_backward",
        "layer:swiglu",
        "layer:swiglu_backward",
        "layer:norm_backward",
        "head:chunk_forward",
        "head:chunk_softmax_backward",
    )
)
HINT = "write it with what trainer/host/trace.py models, or take it out of ROWWISE in trainer/host/forms.py"
# A weight's gradient is made so many of its rows at a time.
BLOCK_ROWS = 2048


def weight_grad(dy: Tensor, x: Tensor) -> Tensor:
    """`trainer.graphs.layer.weight_grad` in blocks of its rows.

    The product of a chunk of the head and its float32 copy, both whole, would be the most that a step holds at once.
    """
    total = empty((dy.shape[1], x.shape[1]), torch.float32)
    for begin in range(0, len(total), BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        total[rows] = dy[:, rows].t() @ x
    return total


def cast(total: Tensor, *, dtype: str) -> Tensor:
    """`trainer.graphs.tiles.cast`, in memory of ours."""
    return copy(total, getattr(torch, dtype))


# Written a second time for the sake of memory.
BY_HAND: Mapping[str, Callable[..., Tensor]] = {
    "trainer.graphs.layer:weight_grad": weight_grad,
    "trainer.graphs.tiles:cast": cast,
}


def host_form(graph: Graph) -> Callable[..., Any]:
    """What the cpu backend calls with the graph's tensors: `f(*tensors)` -> a tensor or a tuple of tensors."""
    function = graph.load_function()
    if graph.function in ROWWISE and threads_are_there():
        args = tuple((a.shape, getattr(torch, a.dtype)) for a in graph.args)
        return _compiled(function, args, tuple(sorted(graph.constants.items())))
    return partial(BY_HAND.get(graph.function, function), **graph.constants)


@cache
def _compiled(
    function: Callable[..., Any],
    args: tuple[tuple[tuple[int, ...], torch.dtype], ...],
    constants: tuple[tuple[str, Any], ...],
) -> RowForm:
    with modelled(function, HINT):
        inputs = [Input(shape, dtype, source=number) for number, (shape, dtype) in enumerate(args)]
        traced = function(*inputs, **dict(constants))
        return RowForm(traced if isinstance(traced, tuple) else (traced,))
