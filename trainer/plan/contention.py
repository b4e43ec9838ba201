"""What a run's calls would have taken while no worker updates: what they waited for a CPU is taken off. No torch."""

from __future__ import annotations

from dataclasses import replace

from trainer.plan.costs import StepCosts
from trainer.plan.timeline import play
from trainer.plan.work import layer_update_calls, pass_calls, update_elements
from trainer.step.schedule import BACKWARD, Step, Update

HALVINGS = 20


def alone(step: Step, costs: StepCosts, busy_call_secs: float) -> StepCosts:
    """The costs that give the run's own time on its devices again when they are played with `busy_call_secs`.

    A layer's update keeps workers busy itself, so all of its calls waited, and none longer than it took. Of the calls
    of backward some did: how many is found by bisection, since fewer are beside updates the less they take. Costs that
    do not know the time of calls stay as they are.
    """
    calls = layer_update_calls(step, resident=False).total()
    a_call = costs.cast_secs * update_elements(step, Update(0)) / calls
    busy = min(busy_call_secs, a_call)
    wanted, low, high = _device_secs(step, costs), 0.0, busy
    for _ in range(HALVINGS if busy else 0):
        middle = (low + high) / 2
        got = _device_secs(step, _less(step, costs, middle, busy))
        low, high = (low, middle) if got < wanted else (middle, high)
    return _less(step, costs, low, busy)


def _device_secs(step: Step, costs: StepCosts) -> float:
    return sum(sum(kinds.values()) for kinds in play(step, costs).device_secs.values())


def _less(step: Step, costs: StepCosts, backward_call_secs: float, busy_call_secs: float) -> StepCosts:
    """With so much less for each call of backward, and of a layer's update."""

    def backward(secs: float, *, first: bool) -> float:
        return max(0.0, secs - backward_call_secs * pass_calls(step, BACKWARD, first=first).total())

    def update(secs: float, *, resident: bool) -> float:
        calls = layer_update_calls(step, resident=resident).total()
        return max(0.0, secs - busy_call_secs * calls / update_elements(step, Update(0, resident)))

    later, first = (costs.of_pass(BACKWARD, first=first) for first in (False, True))
    return replace(
        costs,
        pass_secs={**costs.pass_secs, BACKWARD: backward(later, first=False)},
        first_secs={**costs.first_secs, BACKWARD: backward(first, first=True)},
        cast_secs=update(costs.cast_secs, resident=False),
        resident_secs=update(costs.resident_secs, resident=True),
        busy_call_secs=busy_call_secs,
    )
