"""What each operator does to exact values and to bounds of errors. docs/proof.md derives every rule.

Notation: x is exact, e >= 0 bounds |x^ - x| of the computed x^. u is the unit roundoff of an operator's own dtype,
U that of float32, in which sums and products add up whatever their dtype. A rule returns the exact result and a bound
of what evaluating the operator on x^ gives; `_round` adds the rounding to the operator's dtype. An evaluation that
skips a rounding, or rounds only once after several operators, stays within the same bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class Bounded:
    """A result. value: exact, float64; bound: of the absolute error, float64, inf where none is known.

    What is no float has the bound 0.

    factors: of a float32 product, what rounding its factors to bfloat16 adds to the bound, for a sum over it; None for
             what is no product, and where the graph's settings forbid it
    """

    value: Tensor
    bound: Tensor
    dtype: torch.dtype
    factors: Tensor | None = None


Rule = Callable[..., Any]


# float64 occurs where a function asks for a correctly rounded float32 result; the program has float32 there.
UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
U = UNIT[torch.float32]
# What a card flushes to zero: every dtype's below its smallest normal number.
TINY = 2.0**-126
# Relative error of an elementary function (exp, sqrt, rsqrt, sigmoid, division) beside its rounding: 4 units.
ELEMENTARY = 8 * U

# Whether the compiler may round factors of float32 products to bfloat16, as it does by default.
CASTS: ContextVar[bool] = ContextVar("CASTS", default=True)

RULES: dict[Any, Rule] = {}


F = TypeVar("F", bound=Rule)


def rule(*operators: Any) -> Callable[[F], F]:
    def add(function: F) -> F:
        for operator in operators:
            RULES[operator] = function
        return function

    return add


def _round(value: Tensor, bound: Tensor, dtype: torch.dtype) -> Bounded:
    """The rounding of a result to `dtype`; a bound beyond the dtype's largest number is none."""
    unit = UNIT[dtype]
    bound = bound + unit * (value.abs() + bound) + TINY
    largest = torch.finfo(torch.bfloat16 if dtype is torch.bfloat16 else torch.float32).max
    over = ~(value.abs() + bound <= largest)
    return Bounded(value, bound.masked_fill(over, torch.inf), dtype)


def _is_float(x: Any) -> bool:
    return isinstance(x, Bounded) and x.dtype.is_floating_point


def _operand(x: Any, dtype: torch.dtype) -> Bounded:
    """A Python number as the operator sees it: rounded to its dtype."""
    if isinstance(x, Bounded):
        return x
    value = torch.tensor(float(x), dtype=torch.float64)
    return Bounded(value, (torch.tensor(float(x)).to(dtype).double() - value).abs(), dtype)


def _pair(x: Any, y: Any) -> tuple[Bounded, Bounded, torch.dtype]:
    dtypes = [each.dtype for each in (x, y) if isinstance(each, Bounded)]
    dtype = torch.promote_types(*dtypes) if len(dtypes) == 2 else dtypes[0]
    if not dtype.is_floating_point:
        raise NotImplementedError(f"arithmetic of {dtype}")
    return _operand(x, dtype), _operand(y, dtype), dtype


# --- elementwise ----------------------------------------------------------------------------------------------------


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(x: Any, y: Any, *, alpha: float = 1) -> Bounded:
    a, b, dtype = _pair(x, y)
    return _round(a.value + alpha * b.value, a.bound + abs(alpha) * b.bound, dtype)


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(x: Any, y: Any, *, alpha: float = 1) -> Bounded:
    return _add(x, y, alpha=-alpha)


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(x: Any, y: Any, alpha: float = 1) -> Bounded:
    return _add(y, x, alpha=-alpha)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(x: Any, y: Any) -> Bounded:
    a, b, dtype = _pair(x, y)
    bound = a.value.abs() * b.bound + a.bound * (b.value.abs() + b.bound)
    found = _round(a.value * b.value, bound, dtype)
    return replace(found, factors=_factors(a, b)) if dtype is torch.float32 and CASTS.get() else found


def _factors(a: Bounded, b: Bounded) -> Tensor:
    """What rounding both factors to bfloat16 adds to the bound of a product."""
    cast_a, cast_b = _cast_error(a), _cast_error(b)
    big_a, big_b = a.value.abs() + a.bound, b.value.abs() + b.bound
    return cast_a * big_b + (big_a + cast_a) * cast_b


def _cast_error(x: Bounded) -> Tensor:
    """0 for what is a bfloat16 exactly."""
    unit = UNIT[torch.bfloat16]
    exact = (x.bound == 0) & (x.value.to(torch.bfloat16).double() == x.value)
    return (unit * (x.value.abs() + x.bound)).masked_fill(exact, 0.0)


@rule(aten.div.Tensor, aten.div.Scalar)
def _div(x: Any, y: Any) -> Bounded:
    a, b, dtype = _pair(x, y)
    value = a.value / b.value
    least = b.value.abs() - b.bound
    bound = (a.bound + value.abs() * b.bound) / least
    # The divisor may be zero: no bound.
    return _elementary(value, bound.masked_fill(~(least > 0), torch.inf), dtype)


@rule(aten.neg.default)
def _neg(x: Bounded) -> Bounded:
    return Bounded(-x.value, x.bound, x.dtype)


def _elementary(value: Tensor, bound: Tensor, dtype: torch.dtype, relative: Tensor | float = ELEMENTARY) -> Bounded:
    return _round(value, bound + relative * (value.abs() + bound), dtype)


def _between(function: Callable[[Tensor], Tensor], x: Bounded) -> tuple[Tensor, Tensor]:
    """A monotone function's value, and how far it goes over the interval that holds the computed argument."""
    value = function(x.value)
    low, high = function(x.value - x.bound), function(x.value + x.bound)
    far = torch.maximum((low - value).abs(), (high - value).abs())
    return value, far.nan_to_num(torch.inf, torch.inf, torch.inf)


@rule(aten.exp.default)
def _exp(x: Bounded) -> Bounded:
    value, far = _between(torch.exp, x)
    # Its argument is multiplied by log2(e) and rounded first, and what the rounding is off becomes relative.
    largest = torch.where(value + far > 0, x.value.abs() + x.bound, 0.0).clamp(max=128.0)
    return _elementary(value, far, x.dtype, ELEMENTARY + 2 * U * largest)


@rule(aten.sigmoid.default)
def _sigmoid(x: Bounded) -> Bounded:
    value, far = _between(torch.sigmoid, x)
    # 1 / (1 + exp(-x)), with the exponential's error on the side where it is not small beside 1.
    largest = (-x.value + x.bound).clamp(0.0, 128.0)
    return _elementary(value, far, x.dtype, 3 * ELEMENTARY + 2 * U * largest)


@rule(aten.sqrt.default)
def _sqrt(x: Bounded) -> Bounded:
    value, far = _between(lambda t: torch.sqrt(t.clamp(min=0.0)), x)
    return _elementary(value.masked_fill(x.value < 0, torch.nan), far, x.dtype)


@rule(aten.rsqrt.default)
def _rsqrt(x: Bounded) -> Bounded:
    value, far = _between(torch.rsqrt, x)
    return _elementary(value, far.masked_fill(~(x.value - x.bound > 0), torch.inf), x.dtype)


@rule(aten.tanh.default)
def _tanh(x: Bounded) -> Bounded:
    value, far = _between(torch.tanh, x)
    # Made of exponentials, as sigmoid is.
    largest = (x.value.abs() + x.bound).clamp(max=128.0)
    return _elementary(value, far, x.dtype, 3 * ELEMENTARY + 2 * U * largest)


@rule(aten.log.default)
def _log(x: Bounded) -> Bounded:
    value, far = _between(torch.log, x)
    found = _elementary(value, far.masked_fill(~(x.value - x.bound > 0), torch.inf), x.dtype)
    # Near 1, where the logarithm is small, what its argument is split into is not.
    return replace(found, bound=found.bound + ELEMENTARY)


@rule(aten.reciprocal.default)
def _reciprocal(x: Bounded) -> Bounded:
    one = torch.ones((), dtype=torch.float64)
    return _div(Bounded(one, torch.zeros_like(one), x.dtype), x)


@rule(aten.silu.default)
def _silu(x: Bounded) -> Bounded:
    return _mul(x, _sigmoid(x))


@rule(aten.pow.Tensor_Scalar)
def _power(x: Bounded, exponent: float) -> Bounded:
    if exponent == 2:
        return _mul(x, x)
    if exponent == 0.5:
        return _sqrt(x)
    raise NotImplementedError(f"a power of {exponent}")


@rule(aten._to_copy.default)
def _to(x: Bounded, *, dtype: torch.dtype | None = None, **_layout: Any) -> Bounded:
    if dtype is None or dtype is x.dtype:
        return x
    if not (dtype.is_floating_point and _is_float(x)):
        raise NotImplementedError(f"a cast of {x.dtype} to {dtype}")
    if UNIT[dtype] <= UNIT[x.dtype]:
        return Bounded(x.value, x.bound, dtype)
    return _round(x.value, x.bound, dtype)


# --- choices: nothing is rounded, and what an argument's error may turn over counts ----------------------------------


@rule(aten.relu.default)
def _relu(x: Bounded) -> Bounded:
    return Bounded(*_between(torch.relu, x), x.dtype)


@rule(aten.abs.default)
def _abs(x: Bounded) -> Bounded:
    return Bounded(x.value.abs(), x.bound, x.dtype)


@rule(aten.clamp.default)
def _clamp(x: Bounded, least: float | None = None, most: float | None = None) -> Bounded:
    return Bounded(*_between(lambda t: torch.clamp(t, least, most), x), x.dtype)


def _either(operator: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """The larger or the smaller of two."""

    def apply(x: Bounded, y: Bounded) -> Bounded:
        a, b, dtype = _pair(x, y)
        return Bounded(operator(a.value, b.value), torch.maximum(a.bound, b.bound), dtype)

    return apply


RULES[aten.maximum.default], RULES[aten.minimum.default] = _either(torch.maximum), _either(torch.minimum)


def _compared(operator: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """True or false, as 1 or 0; the bound is 1 where the computed numbers may compare otherwise."""

    def apply(x: Any, y: Any) -> Bounded:
        a, b, _ = _pair(x, y)
        near = ((a.value - b.value).abs() <= a.bound + b.bound) & (a.bound + b.bound > 0)
        return Bounded(operator(a.value, b.value), near.double(), torch.bool)

    return apply


for _name in ("gt", "ge", "lt", "le"):
    for _overload in ("Tensor", "Scalar"):
        RULES[getattr(getattr(aten, _name), _overload)] = _compared(getattr(torch, _name))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(condition: Bounded, x: Any, y: Any) -> Bounded:
    if condition.dtype is not torch.bool:
        raise NotImplementedError(f"a choice by {condition.dtype}")
    a, b, dtype = _pair(x, y)
    chosen = condition.value.bool()
    bound = torch.where(chosen, a.bound, b.bound)
    either = (a.value - b.value).abs() + torch.maximum(a.bound, b.bound)
    return Bounded(torch.where(chosen, a.value, b.value), torch.where(condition.bound > 0, either, bound), dtype)


# --- reductions and products ----------------------------------------------------------------------------------------


def _gamma(terms: Tensor | int) -> Tensor:
    """Higham's gamma of a sum of so many terms, in any order: adding a zero is exact."""
    steps = torch.as_tensor(terms, dtype=torch.float64).clamp(min=1.0) * U
    return torch.where(steps < 1, steps / (1 - steps), torch.inf)


def _sum_over(x: Bounded, dims: Sequence[int] | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    where = list(dims) if dims else list(range(x.value.dim()))
    value = x.value.sum(where, keepdim)
    error, size = x.bound.sum(where, keepdim), (x.value.abs() + x.bound).sum(where, keepdim)
    if x.factors is not None:
        # Made a matrix product, whose float32 factors the compiler rounds unless it is told not to.
        error = error + x.factors.sum(where, keepdim)
    terms = ((x.value != 0) | (x.bound > 0)).sum(where, keepdim)
    return value, error + _gamma(terms) * size


@rule(aten.sum.dim_IntList, aten.sum.default)
def _sum(
    x: Bounded, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Bounded:
    return _round(*_sum_over(x, dims, keepdim), dtype or x.dtype)


@rule(aten.mean.dim)
def _mean(x: Bounded, dims: Sequence[int], keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Bounded:
    value, error = _sum_over(x, dims, keepdim)
    count = x.value.numel() / max(1, value.numel())
    # Divided, or multiplied by a rounded 1 / count.
    return _elementary(value / count, error / count, dtype or x.dtype)


@rule(aten.amax.default)
def _amax(x: Bounded, dims: Sequence[int] = (), keepdim: bool = False) -> Bounded:
    """Exact but for its arguments' errors: the largest computed one lies between these two."""
    where = list(dims) if dims else list(range(x.value.dim()))
    value = x.value.amax(where, keepdim)
    high = (x.value + x.bound).amax(where, keepdim) - value
    low = value - (x.value - x.bound).amax(where, keepdim)
    return Bounded(value, torch.maximum(high, low), x.dtype)


@rule(aten.mm.default, aten.bmm.default)
def _product(a: Bounded, b: Bounded) -> Bounded:
    dtype = torch.promote_types(a.dtype, b.dtype)
    big_a, big_b = a.value.abs() + a.bound, b.value.abs() + b.bound
    size = big_a @ big_b
    # A factor that is zero and exact adds nothing to round.
    terms_a = (big_a > 0).sum(-1, dtype=torch.float64).unsqueeze(-1)
    terms_b = (big_b > 0).sum(-2, dtype=torch.float64).unsqueeze(-2)
    # Each factor's product is rounded once as well.
    bound = _gamma(torch.minimum(terms_a, terms_b) + 1) * size
    if dtype is torch.float32 and CASTS.get():
        cast_a, cast_b = _cast_error(a), _cast_error(b)
        bound = bound + cast_a @ big_b + (big_a + cast_a) @ cast_b
    if bool((a.bound > 0).any()) or bool((b.bound > 0).any()):
        bound = bound + (size - a.value.abs() @ b.value.abs()).clamp(min=0.0)
    return _round(a.value @ b.value, bound, dtype)


@rule(aten.addmm.default)
def _addmm(bias: Bounded, a: Bounded, b: Bounded, *, beta: float = 1, alpha: float = 1) -> Bounded:
    return _add(_mul(bias, beta) if beta != 1 else bias, _product(a, b), alpha=alpha)


@rule(aten._softmax.default)
def _softmax(x: Bounded, dim: int, half_to_float: bool) -> Bounded:
    """Softmax does not change when one number is subtracted from a whole row, so only the differences' errors count."""
    del half_to_float
    largest = x.value.amax(dim, keepdim=True)
    # The subtraction's rounding, and no error of the largest.
    shifted = _round(x.value - largest, x.bound, x.dtype)
    powers = _exp(shifted)
    total = _round(*_sum_over(powers, [dim], True), x.dtype)
    return _div(powers, total)


@rule(aten._log_softmax.default)
def _log_softmax(x: Bounded, dim: int, half_to_float: bool) -> Bounded:
    """As softmax: x - largest - log(sum)."""
    del half_to_float
    shifted = _round(x.value - x.value.amax(dim, keepdim=True), x.bound, x.dtype)
    total = _round(*_sum_over(_exp(shifted), [dim], True), x.dtype)
    return _sub(shifted, _log(total))


# --- what moves values and rounds nothing ---------------------------------------------------------------------------


def _moved(operator: Any) -> Rule:
    """The operator on value and bound alike. Results of several tensors come as a list."""

    def apply(x: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("memory_format", None)
        if isinstance(x, list):
            value = operator([each.value for each in x], *args, **kwargs)
            bound = operator([each.bound for each in x], *args, **kwargs)
            return Bounded(value, bound, x[0].dtype)
        value, bound = operator(x.value, *args, **kwargs), operator(x.bound, *args, **kwargs)
        if isinstance(value, list | tuple):
            return [Bounded(v, b, x.dtype) for v, b in zip(value, bound, strict=True)]
        return Bounded(value, bound, x.dtype)

    return apply


for _operator in (
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.cat.default,
    aten.stack.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
):
    RULES[_operator] = _moved(_operator)
# What torch may view depends on strides, which a `Carried` does not have.
RULES[aten.view.default] = RULES[aten._unsafe_view.default] = _moved(torch.reshape)
