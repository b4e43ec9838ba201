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


def reference(graph: Graph, seed: int, number: int) -> tuple[list[Tensor], list[Bounded]]:
    """Arguments of one set, and the graph's results with their bounds. Raises UnknownOperatorError."""
    inputs = example(graph, seed, number)
    return inputs, bounded(graph, inputs)


def prove(graph: Graph, run: Run, sets: int, seed: int = SEED) -> Found:
    """Whether `run`, which takes the graph's arguments, gives the results that its function gives.

    Ends with the first set that disproves it. Raises what `run` raises.
    """
    judge = Judge()
    for number in range(sets):
        try:
            inputs, wanted = reference(graph, seed, number)
        except (UnknownOperatorError, NotImplementedError) as error:
            return Found("unproven", str(error), (), number)
        if not judge.add(number, run(inputs), wanted):
            break
    return judge.found()


class Judge:
    """Compares the results of one graph, set by set."""

    def __init__(self) -> None:
        self._worst: list[_Worst] = []
        self._wrong = ""
        self._sets = 0

    def add(self, number: int, got: Sequence[Tensor], wanted: Sequence[Bounded]) -> bool:
        """Takes the results of a set; False when they are wrong."""
        self._sets += 1
        shapes = [[(t.dtype, tuple(t.shape)) for t in got], [(w.dtype, tuple(w.value.shape)) for w in wanted]]
        if shapes[0] != shapes[1]:
            self._wrong = f"it returns {shapes[0]}, its function {shapes[1]}"
            return False
        found = [_compare(*pair) for pair in zip(got, wanted, strict=True)]
        pairs = zip(self._worst, found, strict=True)
        self._worst = [max(pair, key=lambda w: w.order) for pair in pairs] if self._worst else found
        self._wrong = "; ".join(f"result {i}, set {number}: {w.wrong}" for i, w in enumerate(found) if w.wrong)
        return not self._wrong

    def found(self) -> Found:
        open_ = ((i, worst.unbounded) for i, worst in enumerate(self._worst) if worst.unbounded)
        unknown = [f"result {i}: {count:,} elements have no bound" for i, count in open_]
        state: State = "disproven" if self._wrong else "unproven" if unknown else "proven"
        deviations = tuple(worst.deviation for worst in self._worst)
        return Found(state, self._wrong or "; ".join(unknown), deviations, self._sets)


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
