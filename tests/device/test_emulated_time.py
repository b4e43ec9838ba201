"""What an emulated card spends on calls and copies, by a clock of the test's own."""

from __future__ import annotations

import time

import pytest
import torch

from graphcache.device import emulated_time
from graphcache.device.emulated_time import EmulatedTime, NoEstimateError
from graphcache.device.emulator import EmulatedCard
from graphcache.device.guarded import GuardedBackend
from graphcache.graph import Graph
from tests.device.example import no_artifacts, two_results_graph


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """The sleeps, none of which is slept; the clock stands still."""
    found: list[float] = []

    class Clock:
        perf_counter = staticmethod(lambda: 0.0)
        sleep = staticmethod(found.append)

    monkeypatch.setattr(emulated_time, "time", Clock)
    return found


def backend(timing: EmulatedTime) -> GuardedBackend:
    return GuardedBackend(EmulatedCard(no_artifacts, eager_catalogs={"test"}, timing=timing))


def estimate(graph: Graph) -> int:
    return 2_000_000


def test_a_call_takes_its_estimate_times_the_factor_and_a_copy_its_bytes(slept):
    card = backend(EmulatedTime(estimate, factor=3.0, link_bytes_per_sec=64.0))
    loaded = card.load(two_results_graph())
    x, y = card.upload(torch.ones(8), "x"), card.upload(torch.full((8,), 2.0), "y")
    first, _ = card.call(loaded, [x, y])
    assert card.download(first)[0] == 7.0
    card.close()
    assert slept == pytest.approx([0.5, 0.5, 0.006, 0.5])


def test_what_the_host_needs_itself_is_part_of_it():
    began = time.perf_counter()
    with emulated_time.at_least(0.05):
        time.sleep(0.04)
    assert time.perf_counter() - began >= 0.05


def test_without_arithmetic_results_have_the_right_shape_and_every_byte_is_counted(slept):
    card = backend(EmulatedTime(estimate, arithmetic=False))
    loaded = card.load(two_results_graph())
    results = card.call(loaded, [card.upload(torch.zeros(8), "x"), card.upload(torch.zeros(8), "y")])
    assert card.bytes_in_use == 4 * 32
    pieces = card.cut(results[0], [(2, 2), (4,)])
    assert card.download(pieces[0]).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    card.free(*pieces)
    assert card.bytes_in_use == 3 * 32
    card.close()


def test_a_graph_that_nobody_has_estimated_is_an_error():
    card = backend(EmulatedTime(lambda graph: None))
    with pytest.raises(NoEstimateError, match=f"{two_results_graph().name} has no estimate"):
        card.load(two_results_graph())
    card.close()


def test_what_is_emulated_is_said():
    assert str(EmulatedTime(estimate, 0.5, 1e10, arithmetic=False)) == (
        "times are emulated: estimates x 0.5, 10 GB/s, nothing is computed"
    )
