"""Tensors that write down what is done to them, so that a graph's own lines become a program over rows.

A row is what a tensor's last dimension runs over; all dimensions before it are counted as one. A value here is one of:
an input, a constant, an operation on single elements, a sum or maximum over a row, a range of columns, ranges side by
side. Shapes broadcast as torch's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from numpy import broadcast_shapes

from trainer.host.exponential import exp
from trainer.host.lanes import FLOAT, Lanes


@dataclass(frozen=True, eq=False)
class Value:
    """`shape` is a tensor's, but that the last dimension of a reduced row is kept as 1 when `squeezed`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    squeezed: bool = field(default=False, kw_only=True)

    @property
    def true_shape(self) -> tuple[int, ...]:
        return self.shape[:-1] if self.squeezed else self.shape

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    def __add__(self, other: Any) -> Any:
        if isinstance(other, ColumnSum):
            return replace(other, total=self)
        return self._binary(Lanes.__add__, other)

    def __radd__(self, other: float) -> Value:
        return self._binary(Lanes.__add__, other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary(Lanes.__sub__, other)

    def __rsub__(self, other: float) -> Value:
        return _constant(other) - self

    def __mul__(self, other: Value | float) -> Value:
        return self._binary(Lanes.__mul__, other)

    def to(self, dtype: torch.dtype) -> Value:
        if dtype == self.dtype:
            return self
        return Applied(self.shape, dtype, lambda x: x.to(dtype), (self,), squeezed=self.squeezed)

    def amax(self, dim: int) -> Value:
        return self._reduced(MAXIMUM, dim, keepdim=False)

    def sum(self, dim: int, keepdim: bool = False) -> Any:
        if dim == 0:
            return ColumnSum(self)
        return self._reduced(SUM, dim, keepdim=keepdim)

    def mean(self, dim: int, keepdim: bool = False) -> Value:
        return self._reduced(SUM, dim, keepdim=keepdim)._binary(Lanes.__truediv__, self.columns)

    def chunk(self, count: int, dim: int) -> tuple[Value, ...]:
        assert dim == len(self.shape) - 1
        width = self.columns // count
        return tuple(self[..., i * width : (i + 1) * width] for i in range(count))

    def __getitem__(self, key: tuple[Any, Any]) -> Value:
        """`[:, None]` of one number a row, or a range of columns."""
        _, columns = key
        if columns is None:
            return self._as_column()
        begin, end, _ = columns.indices(self.columns)
        return Sliced((*self.shape[:-1], end - begin), self.dtype, self, begin)

    def _as_column(self) -> Value:
        assert self.squeezed
        return replace(self, squeezed=False)

    def _binary(self, function: Callable[[Lanes, Lanes], Lanes], other: Value | float) -> Value:
        """Elementwise, in float32: of bfloat16 numbers the result is rounded once, as torch does it."""
        other = other if isinstance(other, Value) else _constant(other)
        if self.dtype != FLOAT:
            return self.to(FLOAT)._binary(function, other.to(FLOAT)).to(self.dtype)
        assert other.dtype == FLOAT
        shape = broadcast_shapes(self.shape, other.shape)
        return Applied(shape, FLOAT, function, (self, other), squeezed=self.squeezed)

    def _reduced(self, kind: Reduction, dim: int, *, keepdim: bool) -> Value:
        assert dim == -1
        assert self.dtype == FLOAT
        return Reduced((*self.shape[:-1], 1), FLOAT, self, kind, squeezed=not keepdim)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Value:
        return FUNCTIONS[function](*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class Input(Value):
    """An argument of the graph, or the product a @ b.t() of two, which torch makes before the rows.

    source: the argument's number, or both numbers
    """

    source: int | tuple[int, int] = 0
    transposed: bool = False

    def t(self) -> Input:
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def __matmul__(self, other: Input) -> Input:
        assert isinstance(self.source, int)
        assert isinstance(other.source, int)
        assert other.transposed
        assert not self.transposed
        return Input((self.shape[0], other.shape[1]), self.dtype, source=(self.source, other.source))

    def _as_column(self) -> Value:
        """A vector with one element a row."""
        (rows,) = self.shape
        return replace(self, shape=(rows, 1))


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
    total: Value | None = None


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
    return Constant((1,), FLOAT, number=float(number))


def _exp(x: Value) -> Value:
    return Applied(x.shape, FLOAT, exp, (x,), squeezed=x.squeezed)


def _sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))"""
    return _inverse(1.0 + _exp(x * -1.0))


def _rsqrt(x: Value) -> Value:
    return _inverse(Applied(x.shape, FLOAT, Lanes.sqrt, (x,), squeezed=x.squeezed))


def _inverse(x: Value) -> Value:
    return Applied(x.shape, FLOAT, Lanes.__truediv__, (_constant(1.0), x), squeezed=x.squeezed)


def _softmax(x: Value, dim: int) -> Value:
    powers = _exp(x - x.amax(dim)[:, None])
    return powers * _inverse(powers.sum(dim, keepdim=True))


def _cat(pieces: Sequence[Value], dim: int) -> Value:
    shape = (*pieces[0].shape[:-1], sum(piece.columns for piece in pieces))
    assert dim in (-1, len(shape) - 1)
    return Joined(shape, pieces[0].dtype, tuple(pieces))


FUNCTIONS: dict[Any, Callable[..., Value]] = {
    torch.exp: _exp,
    torch.sigmoid: _sigmoid,
    torch.rsqrt: _rsqrt,
    torch.softmax: _softmax,
    torch.cat: _cat,
}
