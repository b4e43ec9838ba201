"""The emulated card: it computes what the vendor's program computes, and fails where and how a card does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphcache.artifact import Artifact
from graphcache.device.backend_name import POOL_BYTES
from graphcache.device.emulator import EmulatedCard, EmulatedFlag, process_flag
from graphcache.device.guard import DeviceMemoryError, Guard
from graphcache.device.guarded import GuardedBackend
from graphcache.errors import CorruptError, MissingGraphsError
from graphcache.graph import Graph, TensorSpec
from graphcache.runtime import furiosa
from tests.device.example import compile_artifact, double_graph, no_artifacts, two_results_graph

SPEC = TensorSpec("w", "float32", (4,))


@pytest.fixture
def eager() -> Iterator[GuardedBackend]:
    """An emulated card that runs the test catalog eagerly, so that no compiler is needed."""
    backend = GuardedBackend(EmulatedCard(no_artifacts, eager_catalogs={"test"}))
    yield backend
    backend.close()


def unguarded(card: EmulatedCard) -> GuardedBackend:
    return GuardedBackend(card, Guard(card.name, 1 << 60, flag_is_shared=False))


def test_it_has_a_cards_pool_unless_told_otherwise() -> None:
    assert EmulatedCard(no_artifacts).pool_bytes == POOL_BYTES == 51_002_736_640
    assert EmulatedCard(no_artifacts, pool_bytes=10).pool_bytes == 10


def test_its_flag_is_shared_by_threads_whatever_the_vendors_is() -> None:
    flag = process_flag()
    assert flag.flag_is_shared_by_threads()
    assert (flag is furiosa) == furiosa.flag_is_shared_by_threads()


def test_an_allocation_while_the_flag_is_set_fails_with_the_vendors_facts() -> None:
    card = EmulatedCard(no_artifacts)
    with card.flag.shared_memory(), pytest.raises(torch.OutOfMemoryError) as caught:
        card.allocate(SPEC)
    for fact in ("failed to allocate 16 bytes", "DRAM_SHARED", "capacity: 0"):
        assert fact in str(caught.value)
    card.allocate(SPEC)


def test_so_does_one_of_another_thread() -> None:
    card = EmulatedCard(no_artifacts)
    caught: list[BaseException] = []

    def allocate() -> None:
        try:
            card.allocate(SPEC)
        except torch.OutOfMemoryError as error:
            caught.append(error)

    with card.flag.shared_memory():
        other = threading.Thread(target=allocate)
        other.start()
        other.join()
    assert "DRAM_SHARED" in str(caught[0])


def test_the_flag_is_set_during_a_call_and_as_before_afterwards(eager: GuardedBackend) -> None:
    flag = process_flag()
    loaded = eager.load(Graph("look", "test", f"{__name__}:look_at_flag", (SPEC,)))
    x = eager.upload(torch.ones(4), "x")
    (seen,) = eager.call(loaded, [x])
    assert eager.download(seen).tolist() == [1.0] * 4
    assert not flag.memory_is_shared()


def look_at_flag(x: torch.Tensor) -> torch.Tensor:
    return torch.full((4,), float(process_flag().memory_is_shared()))


def test_a_full_pool_fails_with_the_vendors_facts() -> None:
    card = EmulatedCard(no_artifacts, pool_bytes=24)
    first = card.allocate(SPEC)
    with pytest.raises(torch.OutOfMemoryError, match=r"failed to allocate 16 bytes on DRAM .*capacity: 24"):
        card.allocate(SPEC)
    card.release(first)
    card.allocate(SPEC)


def test_without_the_guard_the_card_itself_says_no_and_the_tensor_is_named() -> None:
    backend = unguarded(EmulatedCard(no_artifacts, pool_bytes=24))
    backend.upload(torch.zeros(4), "first")
    with pytest.raises(DeviceMemoryError, match="had no room for second, 16 bytes"):
        backend.upload(torch.zeros(4), "second")
    backend.close()


def test_a_call_that_fails_gives_back_what_its_results_took(eager: GuardedBackend) -> None:
    card = EmulatedCard(no_artifacts, eager_catalogs={"test"}, pool_bytes=64)
    backend = unguarded(card)
    loaded = backend.load(Graph("fails", "test", f"{__name__}:fails_when_run", (SPEC,)))
    x = backend.upload(torch.ones(4), "x")
    for _ in range(5):
        with pytest.raises(ArithmeticError):
            backend.call(loaded, [x])
    backend.free(x)
    backend.free(backend.upload(torch.zeros(16), "all of it"))
    backend.close()


def fails_when_run(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch._subclasses.FakeTensor):
        raise ArithmeticError("bad luck")
    return x + 1


def test_eager_catalogs_need_no_artifact(eager: GuardedBackend) -> None:
    loaded = eager.load(two_results_graph())
    assert [(o.dtype, o.shape) for o in loaded.outputs] == [("float32", (8,))] * 2
    x, y = eager.upload(torch.ones(8), "x"), eager.upload(torch.full((8,), 2.0), "y")
    first, second = (eager.download(b) for b in eager.call(loaded, [x, y]))
    assert (first[0].item(), second[0].item()) == (7.0, -5.0)


def test_a_graph_that_is_not_in_the_cache_is_missing() -> None:
    def missing(graph: Graph) -> Artifact:
        raise MissingGraphsError(f"{graph.name} is not in the cache")

    backend = GuardedBackend(EmulatedCard(missing))
    with pytest.raises(MissingGraphsError, match=r"double\[1024\]"):
        backend.load(double_graph())
    backend.close()


def test_nothing_is_left_of_a_flag_that_an_error_passed() -> None:
    flag = EmulatedFlag()
    with pytest.raises(ValueError, match="x"), flag.shared_memory():
        raise ValueError("x")
    assert not flag.memory_is_shared()


@pytest.mark.compiler
def test_an_artifacts_own_program_runs(tmp_path: Path) -> None:
    artifact = compile_artifact(two_results_graph(), tmp_path)
    backend = GuardedBackend(EmulatedCard(lambda graph: artifact))
    loaded = backend.load(two_results_graph())
    assert backend.bytes_in_use == len(artifact.runnable)
    x, y = torch.randn(8), torch.randn(8)
    results = backend.call(loaded, [backend.upload(x, "x"), backend.upload(y, "y")])
    assert torch.equal(backend.download(results[0]), x + y * 3)
    assert torch.equal(backend.download(results[1]), x - y * 3)
    backend.close()


@pytest.mark.compiler
def test_another_graphs_artifact_is_refused(tmp_path: Path) -> None:
    artifact = compile_artifact(double_graph(512), tmp_path)
    backend = GuardedBackend(EmulatedCard(lambda graph: artifact))
    with pytest.raises(CorruptError, match=r"artifact of double\[1024\]"):
        backend.load(double_graph(1024))
    backend.close()
