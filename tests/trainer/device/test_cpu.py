"""The host as a device: the graph's own function, run eagerly, and buffers that nobody else can change."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter

import pytest
import torch

from graphcache.graph import Graph, TensorSpec
from tests.device.example import double_graph, two_results_graph
from trainer.device.cpu import CpuBackend


def test_a_graphs_function_runs_with_its_constants() -> None:
    backend = CpuBackend()
    loaded = backend.load(two_results_graph())
    x, y = backend.upload(torch.ones(8), "x"), backend.upload(torch.full((8,), 2.0), "y")
    first, second = backend.call(loaded, [x, y])
    assert backend.download(first).tolist() == [7.0] * 8
    assert backend.download(second).tolist() == [-5.0] * 8


def test_no_gradient_is_recorded() -> None:
    backend = CpuBackend()
    x = backend.upload(torch.ones(1024, requires_grad=True), "x")
    (y,) = backend.call(backend.load(double_graph()), [x])
    assert not backend.download(y).requires_grad
    assert not backend.download(x).requires_grad


def test_uploads_and_downloads_are_copies() -> None:
    backend, host = CpuBackend(), torch.arange(4.0)
    buffer = backend.upload(host, "x")
    host.zero_()
    backend.download(buffer).zero_()
    assert backend.download(buffer).tolist() == [0, 1, 2, 3]


def test_an_upload_of_a_view_is_row_major() -> None:
    backend = CpuBackend()
    buffer = backend.upload(torch.arange(6.0).view(2, 3).t(), "x")
    assert backend.download(buffer).is_contiguous()
    assert backend.download(buffer).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_bytes_are_counted_against_no_pool() -> None:
    backend = CpuBackend()
    x = backend.upload(torch.ones(1024), "x")
    (y,) = backend.call(backend.load(double_graph()), [x])
    backend.free(x, y)
    assert (backend.bytes_in_use, backend.peak_bytes, backend.pool_bytes) == (0, 8192, None)


def test_mistakes_of_ours_are_noticed() -> None:
    backend = CpuBackend()
    buffer = backend.upload(torch.ones(4), "w")
    with pytest.raises(AssertionError, match=r"double\[1024\] takes"):
        backend.call(backend.load(double_graph()), [buffer])
    backend.free(buffer)
    with pytest.raises(AssertionError, match="w is freed twice"):
        backend.free(buffer)


def test_threads_count_to_the_byte() -> None:
    backend = CpuBackend()

    def work() -> None:
        for _ in range(300):
            backend.free(backend.upload(torch.ones(3), "w"))

    threads = [threading.Thread(target=work) for _ in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert backend.bytes_in_use == 0


class SlowCounter(Counter[str]):
    """Another thread runs between the reading of a count and its writing."""

    def __getitem__(self, key: str) -> int:
        count = super().__getitem__(key)
        time.sleep(1e-3)
        return count


def test_calls_of_any_thread_are_counted() -> None:
    backend = CpuBackend()
    backend.calls = SlowCounter()
    loaded, x = backend.load(double_graph()), backend.upload(torch.ones(1024), "x")

    def work() -> None:
        for _ in range(20):
            backend.free(*backend.call(loaded, [x]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(backend.calls.values()) == [80]


def test_results_may_be_an_argument_itself() -> None:
    """Graphs are pure, so nobody sees that two buffers share memory, and each can be freed."""
    backend = CpuBackend()
    same = Graph("same", "test", f"{__name__}:same", (TensorSpec("x", "float32", (2,)),))
    x = backend.upload(torch.ones(2), "x")
    (y,) = backend.call(backend.load(same), [x])
    backend.free(x)
    assert backend.download(y).tolist() == [1, 1]


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def test_what_is_taken_is_freed_and_not_copied() -> None:
    backend = CpuBackend()
    buffer = backend.upload(torch.arange(4.0), "x")
    where = buffer._payload.data_ptr()
    values = backend.take(buffer)
    assert (values.data_ptr(), values.tolist()) == (where, [0, 1, 2, 3])
    assert backend.bytes_in_use == 0
    with pytest.raises(AssertionError, match="x is freed twice"):
        backend.free(buffer)


def test_a_lent_tensor_is_not_copied_unless_its_rows_are_elsewhere() -> None:
    backend, host = CpuBackend(), torch.arange(6.0).view(2, 3)
    assert backend.upload(host, "x", lent=True)._payload.data_ptr() == host.data_ptr()
    assert backend.download(backend.upload(host.t(), "x", lent=True)).tolist() == [[0, 3], [1, 4], [2, 5]]
