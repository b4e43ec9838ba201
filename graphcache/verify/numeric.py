"""Whether an artifact's lowered graph computes what its function says: against a float64 reference, in ulps.

The lowered graph runs on the vendor's host executor: the vendor's own lowering, on a CPU. The reference is the
graph's function run by torch with every float as float64, casts inside it included. The same function run as it is
written says what error the graph's own dtypes cost; the lowered graph may not have a few times more.

As a command it is the process that `graphcache.verify.numeric_checks` starts: a sealed entry a line in, a line of
JSON out.

    python -m graphcache.verify.numeric CACHE <entries
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphcache.artifact import Artifact
from graphcache.build.check import relative_error
from graphcache.errors import GraphcacheError
from graphcache.export.example_inputs import example
from graphcache.export.program import load_function
from graphcache.graph import Graph
from graphcache.runtime.furiosa import HostExecutor
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore

# How much worse than eager torch a lowered graph may be: it rounds in other places, and may divide by multiplying.
ALLOWED_FACTOR = 4.0
# What it may be off even where torch is exact: of a result's largest value, in ulps.
ALLOWED_ULPS = 4.0


@dataclass(frozen=True)
class Accuracy:
    """One result of a graph against float64.

    max_ulps:     the largest error, in units in the last place of the reference rounded to the result's dtype. Where a
                  result nearly cancels to zero this is large for torch as well, which `eager_ulps` shows.
    relative:     Frobenius norm of the error over that of the reference
    eager_*:      the same of torch, run as the function is written
    """

    dtype: str
    max_ulps: float
    eager_ulps: float
    relative: float
    eager_relative: float
    passed: bool


@dataclass(frozen=True)
class Numeric:
    """All results of one graph; `problem`: why it could not be run at all."""

    results: tuple[Accuracy, ...]
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and all(result.passed for result in self.results)

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "problem": self.problem, "results": [asdict(r) for r in self.results]}


def numeric(graph: Graph, artifact: Artifact) -> Numeric:
    """Runs `artifact`'s lowered graph, and `graph`'s function twice. Memory: about eight times the arguments' size."""
    try:
        inputs = example(graph)
        reference = evaluate_wide(graph, inputs)
        eager = evaluate(graph, inputs)
        lowered = HostExecutor.of(artifact).execute(inputs)
    except GraphcacheError as error:
        return Numeric((), error.message)
    found = [[(str(t.dtype), tuple(t.shape)) for t in results] for results in (lowered, eager)]
    if found[0] != found[1]:
        return Numeric((), f"the artifact returns {found[0]}, its function {found[1]}")
    return Numeric(tuple(_accuracy(*three) for three in zip(lowered, eager, reference, strict=True)))


def evaluate(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The graph's function by eager torch, as it is written."""
    with torch.no_grad():
        found = load_function(graph)(*inputs)
    return [found] if isinstance(found, Tensor) else list(found)


def evaluate_wide(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The graph's function with every float as float64, those that it makes itself included."""
    with AllFloat64():
        return evaluate(graph, [t.double() if t.is_floating_point() else t for t in inputs])


class AllFloat64(TorchDispatchMode):
    """Every cast to a floating dtype, and every operator that is told one, gets float64 instead."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _accuracy(lowered: Tensor, eager: Tensor, reference: Tensor) -> Accuracy:
    ours, theirs = (_errors(result, reference) for result in (lowered, eager))
    spacing = _ulp(reference.abs().max().reshape(1), lowered.dtype).item() if reference.numel() else 0.0
    allowed = ALLOWED_FACTOR * theirs.largest + ALLOWED_ULPS * spacing
    return Accuracy(
        dtype=str(lowered.dtype).removeprefix("torch."),
        max_ulps=ours.ulps,
        eager_ulps=theirs.ulps,
        relative=ours.relative,
        eager_relative=theirs.relative,
        # Written so that a NaN fails.
        passed=ours.largest <= allowed and ours.relative <= ALLOWED_FACTOR * theirs.relative + _epsilon(lowered.dtype),
    )


@dataclass(frozen=True)
class _Errors:
    largest: float
    ulps: float
    relative: float


def _errors(result: Tensor, reference: Tensor) -> _Errors:
    if not result.numel():
        return _Errors(0.0, 0.0, 0.0)
    wide = result.double()
    difference = (wide - reference).abs()
    return _Errors(
        largest=difference.max().item(),
        ulps=(difference / _ulp(reference, result.dtype)).max().item(),
        relative=relative_error(wide, reference),
    )


def _ulp(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next larger number of `dtype` at each value; at least that of its smallest normal number.

    Computed from the exponent, since torch's nextafter knows no bfloat16.
    """
    if not dtype.is_floating_point:
        return torch.ones_like(reference)
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(reference.abs().clamp(min=info.smallest_normal, max=info.max))
    return torch.ldexp(torch.full_like(reference, info.eps), exponent - 1)


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def main(argv: Sequence[str]) -> int:
    # What a graph's module or native code prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    store = LocalStore(argv[0])
    for line in sys.stdin:
        entry = Entry.decode(line.encode())
        print(json.dumps(numeric(entry.graph, store.open(entry)).as_json()), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
