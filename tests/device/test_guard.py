"""Who takes turns with whom, what is counted, and that no error leaves the guard locked or miscounted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from graphcache.device.emulator import EmulatedFlag
from graphcache.device.guard import DeviceMemoryError, Guard
from graphcache.device.guarded import GuardedBackend
from graphcache.graph import TensorSpec
from tests.device.example import double_graph
from tests.device.fake_card import FakeCard

Open = Callable[[FakeCard], GuardedBackend]


@pytest.fixture
def opened() -> Iterator[Open]:
    backends: list[GuardedBackend] = []

    def open_one(card: FakeCard) -> GuardedBackend:
        backends.append(GuardedBackend(card))
        return backends[-1]

    yield open_one
    for backend in backends:
        backend.close()


def race(*backends: GuardedBackend, rounds: int = 20) -> None:
    """Calls and uploads on all of the backends, from two threads each."""
    graph = double_graph(16)

    def call(backend: GuardedBackend) -> None:
        loaded = backend.load(graph)
        x = backend.upload(torch.ones(16), "x")
        for _ in range(rounds):
            backend.free(*backend.call(loaded, [x]))
        backend.free(x)

    def upload(backend: GuardedBackend) -> None:
        for _ in range(rounds):
            backend.free(backend.upload(torch.ones(16), "w"))

    with ThreadPoolExecutor(4 * len(backends)) as pool:
        jobs = [pool.submit(job, b) for b in backends for job in (call, upload, call, upload)]
        for job in jobs:
            job.result()


def test_calls_and_allocations_take_turns_where_the_flag_is_shared(opened: Open) -> None:
    card = FakeCard(shared_by_threads=True, pause_secs=0.0005)
    race(opened(card))
    assert {pair for pair in card.together if "copy" not in pair} == set()


def test_copies_run_beside_calls(opened: Open) -> None:
    card = FakeCard(shared_by_threads=True, pause_secs=0.0005)
    race(opened(card))
    assert ("call", "copy") in card.together


def test_turns_are_taken_over_all_devices_of_the_process(opened: Open) -> None:
    first, second = FakeCard(pause_secs=0.0005), FakeCard(pause_secs=0.0005)
    second.running = first.running  # as if they were one card
    second.together = first.together
    race(opened(first), opened(second))
    assert {pair for pair in first.together if "copy" not in pair} == set()


def test_only_calls_take_turns_where_each_thread_has_its_own_flag(opened: Open) -> None:
    card = FakeCard(shared_by_threads=False, pause_secs=0.0005)
    race(opened(card))
    assert ("call", "call") not in card.together
    assert ("allocation", "call") in card.together


def test_the_emulated_flag_is_found_to_be_shared_by_asking() -> None:
    flag = EmulatedFlag()
    assert flag.flag_is_shared_by_threads()
    assert not flag.memory_is_shared()


def test_a_tensor_that_does_not_fit_is_named_with_its_size_and_the_budget(opened: Open) -> None:
    backend = opened(FakeCard(pool_bytes=1000))
    backend.upload(torch.zeros(100), "layers.0.up_proj")
    with pytest.raises(DeviceMemoryError) as caught:
        backend.upload(torch.zeros(200), "layers.1.up_proj")
    assert "layers.1.up_proj needs 800 bytes" in caught.value.message
    assert "pool is 1,000 bytes, 400 in use, 600 free" in caught.value.hint


def test_results_that_do_not_fit_are_refused_before_the_call(opened: Open) -> None:
    card = FakeCard(pool_bytes=300)
    backend = opened(card)
    loaded = backend.load(double_graph(32))
    x = backend.upload(torch.ones(32), "x")
    card.in_call = lambda: pytest.fail("the graph ran")
    with pytest.raises(DeviceMemoryError, match=r"the results of double\[32\] needs 128 bytes"):
        backend.call(loaded, [x])
    assert backend.bytes_in_use == 228


def test_bytes_are_counted_and_given_back(opened: Open) -> None:
    backend = opened(FakeCard())
    loaded = backend.load(double_graph(32))
    x = backend.upload(torch.ones(32), "x")
    (y,) = backend.call(loaded, [x])
    assert backend.bytes_in_use == 100 + 128 + 128
    backend.free(x, y)
    assert (backend.bytes_in_use, backend.peak_bytes) == (100, 356)


def test_a_devices_own_out_of_memory_is_named_too_and_not_counted(opened: Open) -> None:
    card = FakeCard()
    backend = opened(card)
    card.full = True
    with pytest.raises(DeviceMemoryError, match="no room for w, 12 bytes: failed to allocate 12 bytes"):
        backend.upload(torch.zeros(3), "w")
    assert backend.bytes_in_use == 0


@pytest.mark.parametrize("error", [RuntimeError("the worker died"), KeyboardInterrupt()])
def test_an_error_in_a_call_leaves_the_guard_free_for_others(opened: Open, error: BaseException) -> None:
    card = FakeCard()
    backend = opened(card)
    loaded = backend.load(double_graph(8))
    x = backend.upload(torch.ones(8), "x")

    def fail() -> None:
        raise error

    card.in_call = fail
    with pytest.raises(type(error)):
        backend.call(loaded, [x])
    card.in_call = lambda: None
    in_use = backend.bytes_in_use
    other = threading.Thread(target=lambda: backend.free(*backend.call(loaded, [x])), daemon=True)
    other.start()
    other.join(timeout=30)
    assert not other.is_alive()
    assert backend.bytes_in_use == in_use


def test_many_threads_count_to_the_byte(opened: Open) -> None:
    guard = Guard("fake", 1 << 30, flag_is_shared=False)
    spec = TensorSpec("x", "float32", (3,))

    def work(_: int) -> None:
        for _ in range(200):
            with guard.reserved(spec.size_bytes, spec.name):
                pass
            guard.release(spec.size_bytes)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert guard.bytes_in_use == 0
