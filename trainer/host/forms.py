"""A graph's form on the host: machine code made from its own lines where these go over rows, else the function itself.

One pass over memory on all of torch's threads replaces eager torch's pass an operation with float32 temporaries between
them: a training step takes two thirds of the time and less memory (docs/results/training.md).
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from graphcache.graph import Graph
from trainer.host.machine import compile_ir
from trainer.host.pages import copy, empty
from trainer.host.rows import RowCode
from trainer.host.trace import ColumnSum, Input, Value, everything_under

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
# The entry point of gcc's OpenMP, which LLVM's and Intel's have too: torch's threads, whichever it was built with.
TEAM = "GOMP_parallel"


# Rows are taken by threads in about so many parts each: one on a CPU that has other work, or a slower one, takes fewer.
SHARES = 8
# A weight's gradient is made so many of its rows at a time.
BLOCK_ROWS = 2048


def weight_grad(dy: Tensor, x: Tensor) -> Tensor:
    """`trainer.graphs.layer.weight_grad` in blocks, bit for bit.

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
    module, _, name = graph.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    if graph.function in ROWWISE and hasattr(ctypes.CDLL(None), TEAM):
        args = tuple((a.shape, getattr(torch, a.dtype)) for a in graph.args)
        return _compiled(function, args, tuple(sorted(graph.constants.items())))
    return partial(BY_HAND.get(graph.function, function), **graph.constants)


@cache
def _compiled(
    function: Callable[..., Any],
    args: tuple[tuple[tuple[int, ...], torch.dtype], ...],
    constants: tuple[tuple[str, Any], ...],
) -> RowForm:
    inputs = [Input(shape, dtype, source=number) for number, (shape, dtype) in enumerate(args)]
    traced = function(*inputs, **dict(constants))
    return RowForm(traced if isinstance(traced, tuple) else (traced,))


class RowForm:
    """A traced graph as machine code, to be called with contiguous tensors of the shapes that it was traced with."""

    def __init__(self, results: Sequence[Value | ColumnSum]) -> None:
        """results: what the graph returned when it was called with `Input`s"""
        self._results = results
        outputs = [result.rows if isinstance(result, ColumnSum) else result for result in results]
        self._stored = [output for output in outputs if not isinstance(output, Input)]
        inputs = list(inputs_of(self._stored))
        self._sources = [value.source for value in inputs]
        code = RowCode(inputs, self._stored)
        self._rows = code.row_count
        self._engine = compile_ir(code.text(), optimize=True)  # owns the code's memory
        self._function = ctypes.c_void_p(self._engine.get_function_address("team"))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given: dict[Any, Tensor] = dict(enumerate(tensors))
        given |= {s: tensors[s[0]] @ tensors[s[1]].t() for s in self._sources if isinstance(s, tuple)}
        stored = [empty(value.true_shape, value.dtype) for value in self._stored]
        arrays = [*(given[source] for source in self._sources), *stored]
        assert all(array.is_contiguous() for array in arrays)
        share = max(1, self._rows // (SHARES * torch.get_num_threads()))
        data = (ctypes.c_uint64 * (3 + len(arrays)))(0, share, self._rows, *(array.data_ptr() for array in arrays))
        _team()(self._function, data, 0, 0)
        following = iter(stored)
        return tuple(_result(result, given, following) for result in self._results)


def inputs_of(values: Iterable[Value]) -> Iterator[Input]:
    """Every input that the values are computed from, once."""
    return (value for value in everything_under(values) if isinstance(value, Input))


def _result(result: Value | ColumnSum, given: Mapping[Any, Tensor], stored: Iterator[Tensor]) -> Tensor:
    match result:
        case Input():
            return given[result.source]
        case ColumnSum():
            assert isinstance(result.total, Input)
            return given[result.total.source] + next(stored).sum(0)
    return next(stored)


@cache
def _team() -> Callable[..., None]:
    """`team(function, data, threads, flags)` calls function(data) on so many of torch's threads; 0: on all of them."""
    function = getattr(ctypes.CDLL(None), TEAM)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    found: Callable[..., None] = function
    return found
