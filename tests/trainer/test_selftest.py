"""The self-test: a device that computes what graphs say passes, one that does not is named; what it gave is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from graphcache.catalog import CatalogOptions
from graphcache.device.base import Buffer, LoadedGraph
from graphcache.errors import GraphcacheError, UsageError
from graphcache.plan import PlanItem
from graphcache.source.hash import SourceHash
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.support.tiny import LLAMA
from trainer.architecture.config import ModelConfig
from trainer.catalogs import layer
from trainer.config import RunConfig
from trainer.device.cpu import CpuBackend
from trainer.preflight.cached_graphs import CachedGraphs
from trainer.selftest import _keep, _path, _run, kept, selftest


class WrongSoftmax(CpuBackend):
    """A device that computes everything but softmax, and fails on rotations."""

    def call(self, loaded: LoadedGraph, args: Sequence[Buffer]) -> tuple[Buffer, ...]:
        if "rotate" in loaded.graph.function:
            raise GraphcacheError("the card is gone")
        results = super().call(loaded, args)
        if loaded.graph.function.endswith(":softmax"):
            results[0]._payload.mul_(2)
        return results


@pytest.fixture
def graphs(tmp_path: Path) -> CachedGraphs:
    store = LocalStore(tmp_path / "cache")
    listed = layer.parts(ModelConfig.from_json(LLAMA), CatalogOptions(sequence=16)).values()
    items = []
    for i, graph in enumerate({graph.name: graph for graph in listed}.values()):
        entry = store.commit(fake_key(i), fake_artifact(fake_key(i)), fake_facts(graph.name))
        items.append(
            PlanItem(
                graph=graph, source=SourceHash("0" * 64, {}), state="ready", reason="", key=fake_key(i), entry=entry
            )
        )
    return CachedGraphs(store, items, "graphcache build")


def test_each_graph_on_each_device(graphs: CachedGraphs) -> None:
    devices = [CpuBackend("good"), WrongSoftmax("bad")]
    told = []
    found = list(_run(devices, graphs, lambda result, done, total: told.append((result, done, total))))
    assert [result for result, _, _ in told] == found
    assert told[-1][1] == told[-1][2] == 2 * len(graphs.items)
    right = {(result.device, result.graph.partition("[")[0]): result.right for result in found}
    assert {device for (device, _), ok in right.items() if not ok} == {"bad"}
    wrong = {graph: ok for (device, graph), ok in right.items() if device == "bad" and not ok}
    assert wrong == {"layer.softmax": False, "layer.rotate": None}
    text = next(result.text for result in found if result.right is False)
    assert "elements are wrong" in text
    assert all(device.bytes_in_use == 0 for device in devices)

    assert kept(graphs, "bad").startswith("none")
    _keep(graphs, found)
    total = len(graphs.items)
    assert f"{total} of {total} graphs were right" in kept(graphs, "good")
    assert f"{total - 2} of {total} graphs were right" in kept(graphs, "bad")
    path = _path(graphs, "bad")
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"true", b"false", 1))
    assert kept(graphs, "bad").startswith("none")


def test_the_host_has_nothing_to_test(tmp_path: Path) -> None:
    config = RunConfig(model=tmp_path, data=Path(), out=Path(), backend="cpu", resident_layers=1)
    with pytest.raises(UsageError, match="runs no artifacts"):
        selftest(config)
