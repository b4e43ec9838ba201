"""One artifact against its graph's function: run what computes it, compare every element with its bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from graphcache.graph import Graph
from graphcache.proof.bounds import UnknownOperatorError, bounded
from graphcache.proof.cost import Work
from graphcache.proof.inputs import example
from graphcache.proof.rules import Bounded
from graphcache.proof.verdict import Deviation, State

# The form of inputs and bounds; another form is another method, and its verdicts are others.
METHOD = "running-error-1"
SEED = 0
Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Found:
    """state and reason: of a `Verdict`; sets: how many were run until it was clear."""

    state: State
    reason: str
    results: tuple[Deviation, ...]
    sets: int


def work(graph: Graph) -> Work:
    """What one call of the graph does. Computes nothing. Raises whatever the graph's function raises."""
    metas = [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta") for spec in graph.args]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        graph.load_function()(*metas, **graph.constants)
    return Work(counter.get_total_flops() // 2, sum(spec.elements for spec in graph.args))


def prove(graph: Graph, run: Run, sets: int, seed: int = SEED) -> Found:
    """Whether `run`, which takes the graph's arguments, gives the results that its function gives.

    Ends with the first set that disproves it. Raises what `run` raises.
    """
    worst: list[_Worst] = []
    for number in range(sets):
        inputs = example(graph, seed, number)
        try:
            wanted = bounded(graph, inputs)
        except (UnknownOperatorError, NotImplementedError) as error:
            return Found("unproven", str(error), (), number)
        got = list(run(inputs))
        shapes = [[(t.dtype, tuple(t.shape)) for t in got], [(w.dtype, tuple(w.value.shape)) for w in wanted]]
        if shapes[0] != shapes[1]:
            return Found("disproven", f"it returns {shapes[0]}, its function {shapes[1]}", (), number + 1)
        found = [_compare(*pair) for pair in zip(got, wanted, strict=True)]
        worst = [max(pair, key=lambda w: w.order) for pair in zip(worst, found, strict=True)] if worst else found
        wrong = [f"result {i}, set {number}: {w.wrong}" for i, w in enumerate(found) if w.wrong]
        if wrong:
            return Found("disproven", "; ".join(wrong), tuple(w.deviation for w in worst), number + 1)
    open_ = [f"result {i}: {w.unbounded:,} elements have no bound" for i, w in enumerate(worst) if w.unbounded]
    return Found("unproven" if open_ else "proven", "; ".join(open_), tuple(w.deviation for w in worst), sets)


@dataclass(frozen=True)
class _Worst:
    """The element that fills most of its bound. unbounded: elements without a bound; wrong: what is, for people."""

    deviation: Deviation
    unbounded: int
    wrong: str

    @property
    def order(self) -> tuple[int, float]:
        share = self.deviation.share
        return self.unbounded, float("inf") if share is None else share


def _compare(got: Tensor, wanted: Bounded) -> _Worst:
    name = str(got.dtype).removeprefix("torch.")
    if not got.numel():
        return _Worst(Deviation(name, 0.0, 0.0, 0.0), 0, "")
    value, exact, bound = got.double().reshape(-1), wanted.value.reshape(-1), wanted.bound.reshape(-1)
    error = (value - exact).abs()
    known = bound.isfinite() & exact.isfinite()
    # A NaN in what was computed is no smaller than any bound; a result that is exact has a share of 0 or of infinity.
    share = torch.where(error == 0, 0.0, error / bound).nan_to_num(torch.inf, torch.inf).masked_fill(~known, 0.0)
    place = int(share.argmax())
    over = int((share > 1).sum())
    numbers = [each[place].item() for each in (share, error, bound)]
    share_there, error_there, bound_there = numbers
    deviation = Deviation(name, _finite(share_there), _finite(error_there), bound_there if known[place] else 0.0)
    wrong = ""
    if over:
        where = [int(i) for i in torch.unravel_index(torch.tensor(place), got.shape)]
        right = f"{exact[place].item():.7g} to within {bound_there:.3g}"
        wrong = (
            f"{over:,} of {got.numel():,} elements are wrong, {value[place].item():.7g} at {where} instead of {right}"
        )
    return _Worst(deviation, int((~known).sum()), wrong)


def _finite(number: float) -> float | None:
    return number if abs(number) < float("inf") else None
