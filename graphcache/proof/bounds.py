"""A graph's function in float64, with a bound on what any sane evaluation of it in its own dtypes may be off.

Running error analysis (Higham 2002, Accuracy and Stability of Numerical Algorithms, ch. 3): each tensor carries its
exact value and, element by element, a bound on the error that roundings so far can have left; each operator hands the
bounds on by its derivative, or its monotony, and adds its own rounding. `graphcache.proof.rules` has the operators;
docs/proof.md the derivation, and what is assumed of the arithmetic.

The function runs as it is written: torch takes it apart into operators of its own, and each arrives here. An operator
without a rule ends the proof (UnknownOperatorError): what cannot be bounded is not proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphcache.errors import GraphcacheError
from graphcache.graph import Graph
from graphcache.proof.rules import CASTS, RULES, Bounded


class UnknownOperatorError(GraphcacheError):
    """An operator whose error nobody has bounded."""

    name = "unknown-operator"


class Carried(Tensor):
    """A tensor of a graph while it is bounded: it says the dtype that the graph sees, and holds a `Bounded`."""

    held: Bounded

    @staticmethod
    def __new__(cls, held: Bounded) -> Carried:
        made: Carried = Tensor._make_wrapper_subclass(cls, held.value.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None:
            raise UnknownOperatorError(
                f"{func} has no bound, so a graph that calls it cannot be proven",
                hint="graphcache/proof/rules.py has the operators that are known",
            )
        found = rule(*(_held(arg) for arg in args), **{name: _held(arg) for name, arg in (kwargs or {}).items()})
        return [Carried(each) for each in found] if isinstance(found, list) else Carried(found)


def _held(arg: Any) -> Any:
    if isinstance(arg, Carried):
        return arg.held
    if isinstance(arg, Tensor):  # a constant that the function makes or closes over
        return exactly(arg)
    return [_held(each) for each in arg] if isinstance(arg, list | tuple) else arg


def exactly(tensor: Tensor) -> Bounded:
    """An argument: whatever its dtype, its values are exact."""
    return Bounded(tensor.double(), torch.zeros(tensor.shape, dtype=torch.float64), tensor.dtype)


def bounded(graph: Graph, inputs: Sequence[Tensor]) -> list[Bounded]:
    """The graph's results for `inputs`: CPU tensors of its arguments' shapes and dtypes.

    Raises UnknownOperatorError, and what the function raises. Memory: about 40 bytes an element of what it holds at
    once; time: up to four products in float64 for each of the function's.
    """
    function = graph.load_function()
    token = CASTS.set((graph.settings or {}).get("implicit-casts") != "off")
    try:
        with torch.no_grad():
            found = function(*(Carried(exactly(each)) for each in inputs), **graph.constants)
    finally:
        CASTS.reset(token)
    results = [found] if isinstance(found, Tensor) else list(found)
    return [each.held if isinstance(each, Carried) else exactly(each) for each in results]
