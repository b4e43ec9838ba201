from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.catalog import CatalogOptions
from tests.support.tiny import LLAMA
from trainer.architecture.config import ModelConfig
from trainer.plan.contention import alone
from trainer.plan.costs import CostsError, StepCosts
from trainer.plan.run_costs import from_run
from trainer.plan.step_row import from_row
from trainer.plan.timeline import play
from trainer.plan.work import host_elements, pass_calls, passes
from trainer.step.placement import placements
from trainer.step.schedule import BACKWARD, FORWARD, HEAD, Step, describe_step

MODEL = ModelConfig.from_json({**LLAMA, "num_hidden_layers": 8})
COSTS = StepCosts(
    pass_secs={FORWARD: 1.0, BACKWARD: 3.0, HEAD: 2.0},
    copy_bytes_per_sec=math.inf,
    update_secs=0.0,
    workers=2,
    resident_secs=0.0,
    basis="given",
)


def step(
    devices: int = 1, resident: int = 0, micro_batches: int = 4, *, clipped: bool = False, groups: int = 0
) -> Step:
    found = list(placements(MODEL.layers, devices, resident))
    placement = next((p for p in found if len(p.groups) == groups), found[0])
    options = CatalogOptions(sequence=16, dtype="float32")
    return describe_step(MODEL, options, placement, micro_batches=micro_batches, clipped=clipped)


def test_one_device_takes_the_sum_of_its_passes() -> None:
    assert play(step(), COSTS).step_secs == 4 * (8 * (1 + 3) + 2)


def test_the_order_of_micro_batches_changes_nothing_where_nothing_is_waited_for() -> None:
    assert play(step(), COSTS, by_micro_batch=True).step_secs == play(step(), COSTS).step_secs


def test_two_devices_side_by_side_are_faster_and_in_turns_they_are_not() -> None:
    alone = play(step(), COSTS).step_secs
    beside = play(step(2, micro_batches=4, groups=8), COSTS).step_secs
    assert 0.5 * alone < beside < 0.7 * alone
    assert play(step(2, groups=8), COSTS, in_turns=True).step_secs == alone


def test_no_device_does_two_things_at_once_and_all_passes_are_played() -> None:
    played = play(step(2, groups=8), replace(COSTS, copy_bytes_per_sec=1e4))
    for lane in {span.lane for span in played.spans}:
        spans = sorted((s.start, s.start + s.secs) for s in played.spans if s.lane == lane)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))
    assert sum(span.name == BACKWARD for span in played.spans) == 8 * 4


def test_updates_hide_behind_the_backward_below_them() -> None:
    """All of a layer's update fits into the backward of the layers below: what waits is the lowest ones'."""
    elements = host_elements(step())
    hidden = replace(COSTS, update_secs=24.0 / elements)
    assert play(step(), hidden).update_wait_secs < 24.0 / 8
    assert play(step(clipped=True), hidden).update_wait_secs >= 12.0  # two workers


def test_resident_layers_take_work_off_the_host_and_put_it_on_the_device() -> None:
    slow = replace(COSTS, update_secs=300.0 / host_elements(step()), resident_secs=1e-9)
    waits = [play(step(resident=resident), slow).update_wait_secs for resident in range(9)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(waits))
    assert waits[3] < waits[0]
    assert play(step(resident=8), slow).device_secs[0]["gradients"] > 0


@given(st.floats(1e-7, 1e-3), st.integers(1, 8), st.integers(1, 6))
def test_more_workers_never_make_a_step_longer(secs: float, workers: int, micro_batches: int) -> None:
    costs = replace(COSTS, update_secs=secs, workers=workers)
    more = replace(costs, workers=workers + 1)
    described = step(micro_batches=micro_batches)
    assert play(described, more).step_secs <= play(described, costs).step_secs + 1e-9


def test_a_row_that_no_host_gives_is_refused() -> None:
    with pytest.raises(CostsError):
        from_row(step(), step_secs=1.0, update_wait_secs=-0.1, workers=4)


def test_calls_take_longer_beside_updates_and_only_there() -> None:
    """Nothing runs beside forward and head; with a clip norm nothing runs beside backward either."""
    slow = replace(COSTS, update_secs=1000.0 / host_elements(step()))
    plain, busy = (play(step(), replace(slow, busy_call_secs=secs)).device_secs[0] for secs in (0.0, 0.01))
    assert (busy[FORWARD], busy[HEAD]) == (plain[FORWARD], plain[HEAD])
    calls = pass_calls(step(), BACKWARD, first=True).total(), pass_calls(step(), BACKWARD, first=False).total()
    assert busy[BACKWARD] - plain[BACKWARD] == pytest.approx(0.01 * 8 * (calls[0] + 3 * calls[1]))
    clipped = step(clipped=True)
    held = [play(clipped, replace(slow, busy_call_secs=secs)).device_secs[0] for secs in (0.0, 0.01)]
    assert held[0][BACKWARD] == held[1][BACKWARD]


@given(st.floats(0.0, 0.02), st.integers(1, 4), st.integers(0, 8), st.floats(1e-6, 1e-3))
def test_what_calls_waited_is_taken_off_so_that_the_run_comes_out_again(
    busy: float, workers: int, resident: int, update_secs: float
) -> None:
    described = step(resident=resident)
    costs = replace(COSTS, update_secs=update_secs, workers=workers, cast_secs=1e-4, resident_secs=2e-4)
    found = alone(described, costs, busy)
    assert found.busy_call_secs == busy
    assert found.pass_secs[FORWARD] == costs.pass_secs[FORWARD]
    assert all(found.pass_secs[kind] <= costs.pass_secs[kind] for kind in costs.pass_secs)
    assert play(described, found).step_secs == pytest.approx(play(described, costs).step_secs, rel=0.02)


def record(secs: float) -> dict[str, object]:
    """A step of 8 layers and 4 micro-batches."""
    return {
        "phase_secs": {FORWARD: 32 * secs, BACKWARD: 96 * secs, HEAD: 8 * secs},
        "update_busy_secs": 10.0,
    }


def test_a_runs_own_costs_give_its_own_step() -> None:
    costs = from_run(step(), [record(99.0), record(0.5), record(0.5), record(0.5)], workers=2)
    assert costs.pass_secs == {FORWARD: 0.5, BACKWARD: 1.5, HEAD: 1.0}
    assert play(step(), costs).update_busy_secs == pytest.approx(10.0)
    assert passes(step()) == {FORWARD: 32, BACKWARD: 32, HEAD: 4}


def test_one_step_tells_no_costs() -> None:
    with pytest.raises(CostsError, match="one step"):
        from_run(step(), [record(1.0)], workers=2)
