"""The card's backend, up to the first thing that needs a card: then a named error, and a guard that is free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphcache.artifact import Artifact
from graphcache.device.card import ArtifactSource
from graphcache.device.driver import driver_problems
from graphcache.device.furiosa import FuriosaCard
from graphcache.device.guard import DeviceMemoryError
from graphcache.device.guarded import GuardedBackend
from graphcache.errors import CorruptError
from graphcache.key import Key
from graphcache.runtime import furiosa
from tests.device.example import FUSION, compile_artifact, double_graph, no_artifacts

# An allocation without a driver is a full pool to 2026.4 and a failed check to 2026.2.
NO_CARD = (furiosa.CardCallError, DeviceMemoryError)

pytestmark = pytest.mark.skipif(not driver_problems(), reason="this machine has a driver, and perhaps a card")


def card(artifact_of: ArtifactSource = no_artifacts) -> FuriosaCard:
    return FuriosaCard(artifact_of, name="furiosa:3", index=1, fusion=FUSION)


@pytest.fixture
def backend() -> Iterator[GuardedBackend]:
    opened = GuardedBackend(card())
    yield opened
    opened.close()


def test_it_asks_the_vendors_own_flag() -> None:
    assert card().flag.flag_is_shared_by_threads() == furiosa.flag_is_shared_by_threads()


def test_an_upload_without_a_card_is_a_named_error_and_counts_nothing(backend: GuardedBackend) -> None:
    with pytest.raises(NO_CARD):
        backend.upload(torch.zeros(4), "w")
    assert backend.bytes_in_use == 0
    with backend._guard.call():
        pass


def test_another_fusion_than_the_processs_is_refused() -> None:
    with pytest.raises(furiosa.FusionError, match="4 PEs"):
        FuriosaCard(no_artifacts, name="furiosa:0", index=0, fusion=4)


@pytest.mark.compiler
def test_a_graph_is_read_and_checked_before_the_card_is_touched(tmp_path: Path) -> None:
    artifact = compile_artifact(double_graph(), tmp_path)
    backend = GuardedBackend(card(lambda graph: artifact))
    with pytest.raises(NO_CARD):
        backend.load(double_graph())
    with pytest.raises(CorruptError, match=r"double\[2048\]"):
        backend.load(double_graph(2048))
    backend.close()


@pytest.mark.compiler
def test_the_runnables_own_signature_is_compared(tmp_path: Path) -> None:
    """An artifact whose metadata says one thing, and whose runnable is another graph's."""
    other, wanted = compile_artifact(double_graph(512), tmp_path), double_graph()
    mixed = Artifact(other.runnable, other.dfg, wanted.args, wanted.args, other.key)
    backend = GuardedBackend(card(lambda graph: mixed))
    with pytest.raises(CorruptError, match=r"\(512,\)"):
        backend.load(wanted)
    backend.close()


def test_a_runnable_that_is_none_is_corrupt() -> None:
    graph = double_graph()
    broken = Artifact(memoryview(b"x" * 100), memoryview(b"y"), graph.args, graph.args, Key({"program": "0" * 64}))
    backend = GuardedBackend(card(lambda graph: broken))
    with pytest.raises(CorruptError, match="runnable of 100 bytes"):
        backend.load(graph)
    backend.close()
