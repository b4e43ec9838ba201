"""The backend behind the guard: who owns a buffer, and that a mistake of ours is noticed where it is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphcache.device.guarded import GuardedBackend
from graphcache.runtime.refusal import CompileRefusedError
from tests.device.example import double_graph
from tests.device.fake_card import FakeCard


@pytest.fixture
def backend() -> Iterator[GuardedBackend]:
    opened = GuardedBackend(FakeCard())
    yield opened
    opened.close()


def test_an_upload_is_a_copy(backend: GuardedBackend) -> None:
    host = torch.arange(4.0)
    buffer = backend.upload(host, "x")
    host.zero_()
    assert backend.download(buffer).tolist() == [0, 1, 2, 3]


def test_a_download_is_the_callers_own(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.arange(4.0), "x")
    backend.download(buffer).zero_()
    assert backend.download(buffer).tolist() == [0, 1, 2, 3]


def test_what_is_taken_is_freed(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.arange(4.0), "x")
    assert backend.take(buffer).tolist() == [0, 1, 2, 3]
    assert backend.bytes_in_use == 0
    with pytest.raises(AssertionError, match="freed before"):
        backend.free(buffer)


def test_a_lent_tensor_is_copied_to_a_card(backend: GuardedBackend) -> None:
    host = torch.arange(4.0)
    buffer = backend.upload(host, "x", lent=True)
    host.zero_()
    assert backend.download(buffer).tolist() == [0, 1, 2, 3]


def test_buffers_know_name_dtype_and_shape(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.zeros(2, 3, dtype=torch.bfloat16), "w")
    assert (buffer.spec.name, buffer.spec.dtype, buffer.spec.shape) == ("w", "bfloat16", (2, 3))
    assert buffer.size_bytes == 12


def test_freeing_twice_is_noticed(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.zeros(2), "w")
    backend.free(buffer)
    with pytest.raises(AssertionError, match="freed before"):
        backend.free(buffer)


def test_using_what_was_freed_is_noticed(backend: GuardedBackend) -> None:
    loaded = backend.load(double_graph(8))
    buffer = backend.upload(torch.zeros(8), "w")
    backend.free(buffer)
    with pytest.raises(AssertionError, match="was freed"):
        backend.download(buffer)
    with pytest.raises(AssertionError, match="was freed"):
        backend.call(loaded, [buffer])


def test_a_buffer_of_another_device_is_noticed(backend: GuardedBackend) -> None:
    other = GuardedBackend(FakeCard(name="other"))
    buffer = other.upload(torch.zeros(2), "w")
    with pytest.raises(AssertionError, match="w is not on fake"):
        backend.download(buffer)
    other.close()


def test_arguments_of_another_shape_are_noticed(backend: GuardedBackend) -> None:
    loaded = backend.load(double_graph(8))
    buffer = backend.upload(torch.zeros(4), "w")
    with pytest.raises(AssertionError, match=r"double\[8\] takes"):
        backend.call(loaded, [buffer])


def test_closing_frees_everything_and_allows_compiles_again() -> None:
    card, original = FakeCard(), torch.compile
    backend = GuardedBackend(card)
    backend.upload(torch.zeros(8), "w")
    with pytest.raises(CompileRefusedError):
        torch.compile(torch.neg)
    backend.close()
    assert backend.bytes_in_use == 0
    assert card.closed == 1
    assert torch.compile is original


def test_closing_twice_is_harmless() -> None:
    card = FakeCard()
    backend = GuardedBackend(card)
    backend.close()
    backend.close()
    assert card.closed == 1


def test_views_are_lent_for_the_block_and_count_for_nothing(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.arange(6.0).view(3, 2), "x")
    with backend.views(buffer, [(1, 2)] * 3) as rows:
        assert [backend.download(row).tolist() for row in rows] == [[[0, 1]], [[2, 3]], [[4, 5]]]
        assert backend.bytes_in_use == buffer.size_bytes
    with pytest.raises(AssertionError, match="was freed"):
        backend.download(rows[0])
    assert backend.take(buffer).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert backend.bytes_in_use == 0


def test_views_end_with_an_error_in_the_block(backend: GuardedBackend) -> None:
    buffer = backend.upload(torch.arange(6.0), "x")
    with pytest.raises(RuntimeError), backend.views(buffer, [(3,)] * 2):
        raise RuntimeError
    backend.free(buffer)
    assert backend.bytes_in_use == 0
