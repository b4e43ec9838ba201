"""Tensors that write down what is done to them, so that a graph's own lines become a program over rows.

A row is what a tensor's last dimension runs over; all dimensions before it are counted as one. A value here is one of:
an input, a constant, an operation on single elements, a sum or maximum over a row, a range of columns, ranges side by
side. Shapes broadcast as torch's do, and dtypes are promoted as torch does it.

What is not modelled is an error and never something else: NotTracedError, or Python's own where there is no such
operator or method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from numpy import broadcast_shapes

from trainer.host.exponential import exp
from trainer.host.lanes import BFLOAT, ELEMENT, FLOAT, Lanes


class NotTracedError(NotImplementedError):
    """What a graph does has no form over rows here. Of a graph in `forms.ROWWISE` a mistake of ours."""


@dataclass(frozen=True, eq=False)
class Value:
    """`shape` is a tensor's. squeezed: one number a row, and the shape lacks the last dimension, of size 1."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    squeezed: bool = field(default=False, kw_only=True)

    @property
    def outer(self) -> tuple[int, ...]:
        """The dimensions before the columns."""
        return self.shape if self.squeezed else self.shape[:-1]

    @property
    def columns(self) -> int:
        return 1 if self.squeezed else self.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.outer)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, ColumnSum):
            return other.after(self)
        return self._binary(Lanes.__add__, other)

    def __radd__(self, other: float) -> Value:
        return self._binary(Lanes.__add__, other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary(Lanes.__sub__, other)

    def __rsub__(self, other: float) -> Value:
        return _constant(other) - self

    def __mul__(self, other: Value | float) -> Value:
        return self._binary(Lanes.__mul__, other)

    def __rmul__(self, other: float) -> Value:
        return self._binary(Lanes.__mul__, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary(Lanes.__truediv__, other)

    def to(self, dtype: torch.dtype) -> Value:
        if dtype == self.dtype:
            return self
        if dtype not in ELEMENT:
            raise NotTracedError(f"to({dtype})")
        return Applied(self.shape, dtype, lambda x: x.to(dtype), (self,), squeezed=self.squeezed)

    def amax(self, dim: int, keepdim: bool = False) -> Value:
        return self._reduced(MAXIMUM, dim, keepdim=keepdim)

    def sum(self, dim: int, keepdim: bool = False) -> Any:
        if dim == 0 and not keepdim:
            return ColumnSum(self)
        return self._reduced(SUM, dim, keepdim=keepdim)

    def mean(self, dim: int, keepdim: bool = False) -> Value:
        return self._reduced(SUM, dim, keepdim=keepdim)._binary(Lanes.__truediv__, self.columns)

    def chunk(self, count: int, dim: int) -> tuple[Value, ...]:
        """The last one has fewer columns, or there are fewer chunks, where `count` does not divide the columns."""
        if not self._is_columns(dim):
            raise NotTracedError(f"chunk of {self.shape} along dimension {dim}")
        width = -(-self.columns // count)
        return tuple(self[..., begin : begin + width] for begin in range(0, self.columns, width))

    def __getitem__(self, key: Any) -> Value:
        """`[:, None]` of one number a row, or a range of columns."""
        match key:
            case (slice() as rows, None) if rows == slice(None) and len(self.shape) == 1:
                return self._as_column()
            case (rows, slice(step=None | 1) as columns) if self._is_every_row(rows):
                begin, end, _ = columns.indices(self.columns)
                if begin < end:
                    return Sliced((*self.outer, end - begin), self.dtype, self, begin)
        raise NotTracedError(f"{key} of {self.shape}")

    def _is_columns(self, dim: int) -> bool:
        return not self.squeezed and dim in (-1, len(self.shape) - 1)

    def _is_every_row(self, key: Any) -> bool:
        return not self.squeezed and (key is ... or (key == slice(None) and len(self.shape) == 2))

    def _as_column(self) -> Value:
        if not self.squeezed:
            raise NotTracedError(f"[:, None] of {self.shape}, which is one row")
        return replace(self, shape=(*self.shape, 1), squeezed=False)

    def _binary(self, function: Callable[[Lanes, Lanes], Lanes], other: Value | float) -> Value:
        """Elementwise, in float32: of bfloat16 numbers the result is rounded once, as torch does it."""
        other = other if isinstance(other, Value) else _constant(other)
        tensors = [value for value in (self, other) if not isinstance(value, Constant)]
        if len({value.squeezed for value in tensors}) > 1:
            # torch would lay the numbers of a squeezed value along the other's columns.
            raise NotTracedError(f"arithmetic of {self.shape} and {other.shape}, of which one is one number a row")
        shape = broadcast_shapes(self.shape, other.shape)
        numbers = self.to(FLOAT), other.to(FLOAT)
        result = Applied(shape, FLOAT, function, numbers, squeezed=tensors[0].squeezed)
        return result.to(BFLOAT if all(value.dtype == BFLOAT for value in tensors) else FLOAT)

    def _reduced(self, kind: Reduction, dim: int, *, keepdim: bool) -> Value:
        # A sum without any dimension is promoted otherwise than a tensor.
        if not self._is_columns(dim) or not (keepdim or self.outer) or self.dtype != FLOAT:
            raise NotTracedError(f"a sum or maximum of {self.shape} {self.dtype} along dimension {dim}")
        return Reduced((*self.outer, 1) if keepdim else self.outer, FLOAT, self, kind, squeezed=not keepdim)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Value:
        if function not in FUNCTIONS:
            raise NotTracedError(f"{function}")
        return FUNCTIONS[function](*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class Input(Value):
    """An argument of the graph, or the product a @ b.t() of two, which torch makes before the rows.

    source: the argument's number, or both numbers
    column: it was given as a vector with one element a row, without the last dimension
    """

    source: int | tuple[int, int] = 0
    column: bool = False

    def __post_init__(self) -> None:
        if not self.shape or self.dtype not in ELEMENT:
            raise NotTracedError(f"an argument {self.shape} {self.dtype}")

    @property
    def given_shape(self) -> tuple[int, ...]:
        return self.shape[:-1] if self.column else self.shape

    def t(self) -> Transposed:
        return Transposed(self)

    def __matmul__(self, other: Transposed) -> Input:
        if not isinstance(other, Transposed):
            raise NotTracedError("a product other than a @ b.t()")
        match self, other.of:
            case Input((m, k), source=int(a), column=False), Input((n, width), source=int(b), column=False):
                if (k, self.dtype) == (width, other.of.dtype):
                    return Input((m, n), self.dtype, source=(a, b))
        raise NotTracedError(f"{self.shape} {self.dtype} @ ({other.of.shape} {other.of.dtype}).t()")

    def _as_column(self) -> Value:
        return replace(self, shape=(*self.shape, 1), column=True)


@dataclass(frozen=True)
class Transposed:
    """An argument on its side: the second factor of a product, and nothing else."""

    of: Input


@dataclass(frozen=True, eq=False)
class Constant(Value):
    number: float = 0.0


@dataclass(frozen=True, eq=False)
class Applied(Value):
    """`function` of each element of the operands."""

    function: Callable[..., Lanes]
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Reduction:
    """How the elements of a row become one.

    start:  what an accumulator holds first
    step:   two accumulators as one
    across: the instruction that makes one number of a vector
    """

    start: float
    step: Callable[[Lanes, Lanes], Lanes]
    across: str


SUM = Reduction(-0.0, Lanes.__add__, "call reassoc float @llvm.vector.reduce.fadd.{vector}(float -0.0, {operand})")
MAXIMUM = Reduction(
    -math.inf, lambda a, b: a.call("maximum", b), "call float @llvm.vector.reduce.fmaximum.{vector}({operand})"
)


@dataclass(frozen=True, eq=False)
class Reduced(Value):
    operand: Value
    kind: Reduction


@dataclass(frozen=True, eq=False)
class Sliced(Value):
    """Columns from `begin` on."""

    operand: Value
    begin: int


@dataclass(frozen=True, eq=False)
class Joined(Value):
    """Columns of the pieces side by side."""

    pieces: tuple[Value, ...]


@dataclass(frozen=True)
class ColumnSum:
    """`total` + the sum over all rows of `rows`, which torch adds up after the rows: [columns] float32."""

    rows: Value
    total: Input | None = None

    def after(self, total: Value) -> ColumnSum:
        if self.total is not None or not isinstance(total, Input):
            raise NotTracedError("a sum over all rows, added to more than one argument of the graph")
        return replace(self, total=total)


def operands(value: Value) -> tuple[Value, ...]:
    """What a value's elements are made from; of a reduction nothing, since it needs a whole row."""
    match value:
        case Applied():
            return value.operands
        case Sliced():
            return (value.operand,)
        case Joined():
            return value.pieces
        case _:
            return ()


def everything_under(values: Iterable[Value]) -> Iterator[Value]:
    """The values and all that they are made from, each once."""
    todo, seen = list(values), set[Value]()
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            yield value
            todo.extend((value.operand,) if isinstance(value, Reduced) else operands(value))


def _constant(number: float) -> Constant:
    if not isinstance(number, int | float):
        raise NotTracedError(f"arithmetic with a {type(number).__name__}")
    return Constant((), FLOAT, squeezed=True, number=float(number))


def _applied(function: Callable[..., Lanes], x: Value, *before: Value) -> Value:
    """function(*before, x) of float32 numbers."""
    if x.dtype != FLOAT:
        raise NotTracedError(f"{function.__name__} of {x.dtype}")
    return Applied(x.shape, FLOAT, function, (*before, x), squeezed=x.squeezed)


def _exp(x: Value) -> Value:
    return _applied(exp, x)


def _sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))"""
    return _inverse(1.0 + _exp(x * -1.0))


def _rsqrt(x: Value) -> Value:
    return _inverse(_applied(Lanes.sqrt, x))


def _inverse(x: Value) -> Value:
    return _applied(Lanes.__truediv__, x, _constant(1.0))


def _softmax(x: Value, dim: int) -> Value:
    powers = _exp(x - x.amax(dim, keepdim=True))
    return powers * _inverse(powers.sum(dim, keepdim=True))


def _cat(pieces: Sequence[Value], dim: int) -> Value:
    first = pieces[0]
    alike = all((piece.outer, piece.dtype) == (first.outer, first.dtype) for piece in pieces)
    if not alike or not all(piece._is_columns(dim) for piece in pieces):
        raise NotTracedError(f"cat of {[piece.shape for piece in pieces]} along dimension {dim}")
    return Joined((*first.outer, sum(piece.columns for piece in pieces)), first.dtype, tuple(pieces))


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    torch.exp: _exp,
    torch.sigmoid: _sigmoid,
    torch.rsqrt: _rsqrt,
    torch.softmax: _softmax,
    torch.cat: _cat,
}
