"""Memory that goes round: never under two tensors at a time, and back to the system when it is asked for."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
import torch

from trainer.host import pages
from trainer.host.pages import HUGE_PAGE_BYTES, LARGEST_KEPT_BYTES, SMALLEST_BYTES, copy, empty


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests leave behind goes to where they had it from."""
    monkeypatch.setattr(pages, "_free", defaultdict(list))


def kept_bytes() -> int:
    return sum(size * len(memory) for size, memory in pages._free.items())


@pytest.mark.parametrize("elements", [0, 1, SMALLEST_BYTES // 4, HUGE_PAGE_BYTES // 4 + 5, LARGEST_KEPT_BYTES // 4 + 1])
def test_a_tensor_is_whole_and_writable(elements: int) -> None:
    tensor = empty((elements,), torch.float32)
    tensor.copy_(torch.arange(elements))
    assert tensor.is_contiguous()
    assert torch.equal(tensor, torch.arange(elements, dtype=torch.float32))


def test_the_next_tensor_of_the_size_has_the_same_memory() -> None:
    first = empty((256, 1024), torch.bfloat16)
    where = first.data_ptr()
    del first
    assert empty((512, 256), torch.float32).data_ptr() == where
    assert empty((1024, 256), torch.bfloat16).data_ptr() != 0


def test_memory_is_not_free_while_a_view_is_there() -> None:
    whole = empty((256, 1024), torch.float32)
    view = whole.view(-1)[5:7]
    where = whole.data_ptr()
    view.fill_(3.0)
    del whole
    other = empty((256, 1024), torch.float32)
    other.zero_()
    assert other.data_ptr() != where
    assert view.tolist() == [3.0, 3.0]
    assert kept_bytes() == 0
    del view
    assert kept_bytes() == 1 << 20


def test_what_is_large_is_not_kept_and_asks_for_what_is() -> None:
    del_me = empty((SMALLEST_BYTES,), torch.uint8)
    del del_me
    assert kept_bytes() == SMALLEST_BYTES
    large = empty((LARGEST_KEPT_BYTES + 1,), torch.uint8)
    assert kept_bytes() == 0
    del large
    assert kept_bytes() == 0


def test_a_large_tensor_begins_with_a_huge_page() -> None:
    assert empty((HUGE_PAGE_BYTES + 10,), torch.uint8).data_ptr() % HUGE_PAGE_BYTES == 0


def test_a_copy_is_row_major_and_of_the_dtype() -> None:
    tensor = torch.randn(300, 200).t()
    assert torch.equal(copy(tensor), tensor)
    assert copy(tensor).is_contiguous()
    assert torch.equal(copy(tensor, torch.bfloat16), tensor.bfloat16())


def test_threads_never_share_memory() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = [empty((SMALLEST_BYTES,), torch.uint8).fill_(number) for _ in range(3)]
            wrong.extend(number for tensor in mine if not torch.equal(tensor, torch.full_like(tensor, number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
