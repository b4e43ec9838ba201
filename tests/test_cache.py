"""The public cache, without the compiler: what it refuses, what it leaves alone, what its errors say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cli.main import run
from graphcache import Cache, Graph, MissingGraphsError, TensorSpec, UsageError
from graphcache import cache as cache_module
from graphcache.runtime.host_graph import check_tensors
from tests.support.fake_build import FakeMachine, fake_toolchain
from tests.support.programs import graph_of

GRAPH = graph_of("scaled_sum")


@pytest.fixture(autouse=True)
def toolchain(monkeypatch):
    """Without asking the compiler for its revision, which takes seconds."""
    monkeypatch.setattr(cache_module, "runtime_parts", lambda fusion, memo: without_gcc(fusion))


def without_gcc(fusion: int) -> dict[str, str]:
    return {name: value for name, value in fake_toolchain(fusion).items() if name != "cross-gcc"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_read_only_cache_is_left_as_it_is(tmp_path, monkeypatch):
    machine = FakeMachine(tmp_path, monkeypatch)
    machine.build([GRAPH])
    before = contents(machine.store.root)
    cache = Cache(machine.store.root, read_only=True)
    with pytest.raises(UsageError, match="opened read-only"):
        cache.build([GRAPH])
    assert cache.plan([GRAPH])[0].state == "ready"
    assert cache.verify().sound
    assert contents(machine.store.root) == before


def test_a_read_only_cache_in_the_usual_place_keeps_no_memo_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRAPHCACHE_DIR", raising=False)
    cache = Cache(read_only=True)
    cache.plan([GRAPH])
    assert cache.folder == tmp_path / "graphcache"
    assert not cache.folder.exists()


def test_what_the_folder_lacks_comes_from_a_remote(tmp_path, monkeypatch):
    machine = FakeMachine(tmp_path / "builder", monkeypatch)
    machine.build([GRAPH])
    shared = tmp_path / "shared"
    shared.mkdir()
    assert run(["push", "--cache", str(machine.store.root), "--remote", str(shared)]) == 0
    cache = Cache(tmp_path / "cache", remotes=[str(shared)])
    assert cache.plan([GRAPH])[0].state == "ready"
    assert Cache(tmp_path / "cache").plan([GRAPH])[0].state == "ready", "it was brought in"


def test_remotes_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="only read"):
        Cache(tmp_path, read_only=True, remotes=["/shared"])
    with pytest.raises(UsageError, match="a remote's scheme is one of"):
        Cache(tmp_path, remotes=["ftp://host/cache"])


def test_all_that_is_missing_is_one_error_with_the_command(tmp_path):
    cache = Cache(tmp_path / "cache", fusion=4)
    ours = Graph("mine", "adamw", GRAPH.function, GRAPH.args)
    with pytest.raises(MissingGraphsError) as raised:
        cache.require([ours, GRAPH])
    assert "2 of 2 graphs" in raised.value.message
    assert raised.value.message.count("this source was not exported yet") == 2
    assert f"build --shapes-from MODEL --only adamw --fusion 4 --cache {tmp_path / 'cache'}" in raised.value.hint
    with pytest.raises(MissingGraphsError) as raised:
        cache.require([GRAPH], command="make graphs")
    assert raised.value.hint == "on a node with the compiler: make graphs"
    with pytest.raises(MissingGraphsError):
        cache.artifact(GRAPH)
    assert not (tmp_path / "cache").exists()


def test_two_graphs_of_one_name_are_refused(tmp_path):
    cache = Cache(tmp_path)
    for method in (cache.build, cache.require):
        with pytest.raises(UsageError, match="two graphs are called 'scaled_sum'"):
            method([GRAPH, GRAPH])


def test_a_fusion_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UsageError, match="fusion 3"):
        Cache(tmp_path, fusion=3)


def test_a_device_is_one_device(tmp_path):
    for name, text in (("emulator:2", "is 2 devices"), ("cpu", "the trainer's"), ("gpu", "names no device")):
        with pytest.raises(UsageError, match=text), Cache(tmp_path).device(name):
            pass


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ([torch.zeros(4)], "takes 2 tensors, not 1"),
        ([torch.zeros(4), torch.zeros(5)], r"y is float32\[5\], and the graph takes float32\[4\]"),
        ([torch.zeros(4, dtype=torch.int32), torch.zeros(4)], r"x is int32\[4\]"),
        ([torch.zeros(4, device="meta"), torch.zeros(4)], r"x is float32\[4\] on meta"),
    ],
)
def test_tensors_that_are_not_the_graphs_are_named(tensors, text):
    with pytest.raises(UsageError, match=text):
        check_tensors(GRAPH, tensors)


def test_tensors_of_the_graph_pass():
    check_tensors(Graph("g", "c", "m:f", (TensorSpec("x", "bfloat16", ()),)), [torch.zeros((), dtype=torch.bfloat16)])
    check_tensors(GRAPH, [torch.zeros(4), torch.zeros(4)])
