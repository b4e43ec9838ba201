"""A traced graph as machine code, run by torch's own threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trainer.host.machine import compile_ir
from trainer.host.pages import described, empty
from trainer.host.rows import RowCode
from trainer.host.trace import ColumnSum, Input, Value, everything_under

# The entry point of gcc's OpenMP, which LLVM's and Intel's have too: whichever torch was built with.
TEAM = "GOMP_parallel"
# Rows are taken by threads in about so many parts each: one on a CPU that has other work, or a slower one, takes fewer.
SHARES = 8


def threads_are_there() -> bool:
    """Whether this process has an OpenMP whose threads can be asked for."""
    return hasattr(ctypes.CDLL(None), TEAM)


class RowForm:
    """To be called with contiguous tensors of the shapes and dtypes that the graph was traced with."""

    def __init__(self, results: Sequence[Value | ColumnSum]) -> None:
        """results: what the graph returned when it was called with `Input`s. Raises NotTracedError."""
        self._results = results
        outputs = [result.rows if isinstance(result, ColumnSum) else result for result in results]
        self._stored = [output for output in outputs if not isinstance(output, Input)]
        inputs = [value for value in everything_under(self._stored) if isinstance(value, Input)]
        self._sources = [value.source for value in inputs]
        passed_on = [part for result in results for part in _parts(result) if isinstance(part, Input)]
        self._expected = {value.source: (value.given_shape, value.dtype) for value in (*inputs, *passed_on)}
        self.multiplies = any(isinstance(source, tuple) for source in self._expected)  # matrices, by torch
        code = RowCode(inputs, self._stored)
        self._rows = code.row_count
        self._engine = compile_ir(code.text(), optimize=True)  # owns the code's memory
        self._function = ctypes.c_void_p(self._engine.get_function_address("team"))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Raises ValueError for tensors of which the code would read or write other memory."""
        given: dict[Any, Tensor] = dict(enumerate(tensors))
        given |= {s: tensors[s[0]] @ tensors[s[1]].t() for s in self._expected if isinstance(s, tuple)}
        for source, (shape, dtype) in self._expected.items():
            array = given[source]
            if array.shape != shape or array.dtype != dtype or not array.is_contiguous() or not array.is_cpu:
                raise ValueError(f"argument {source} is {described(array)}: traced was {dtype} {shape}, row-major")
        stored = [empty(value.shape, value.dtype) for value in self._stored]
        arrays = [*(given[source] for source in self._sources), *stored]
        share = max(1, self._rows // (SHARES * torch.get_num_threads()))
        data = (ctypes.c_uint64 * (3 + len(arrays)))(0, share, self._rows, *(array.data_ptr() for array in arrays))
        _team()(self._function, data, 0, 0)
        following = iter(stored)
        return tuple(_result(result, given, following) for result in self._results)


def _parts(result: Value | ColumnSum) -> Sequence[Value | None]:
    return (result.rows, result.total) if isinstance(result, ColumnSum) else (result,)


def _result(result: Value | ColumnSum, given: Mapping[Any, Tensor], stored: Iterator[Tensor]) -> Tensor:
    match result:
        case Input():
            return given[result.source].view(result.shape)
        case ColumnSum():
            total = _result(result.rows, given, stored).sum(0)
            return total if result.total is None else _result(result.total, given, stored) + total
    return next(stored)


@cache
def _team() -> Callable[..., None]:
    """`team(function, data, threads, flags)` calls function(data) on so many of torch's threads; 0: on all of them."""
    function = getattr(ctypes.CDLL(None), TEAM)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    found: Callable[..., None] = function
    return found
