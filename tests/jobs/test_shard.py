"""Shards: every graph in exactly one, the same for every job, about as long as each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcache.costs import Costs
from graphcache.errors import UsageError
from graphcache.jobs.shard import Shard, parse_shard, select
from graphcache.store.base import Cost
from tests.support.fake_graphs import fake_graph

SECS = st.lists(st.floats(0.1, 1000), min_size=0, max_size=40)


@settings(deadline=None)
@given(SECS, st.integers(1, 12), st.randoms())
def test_the_shards_have_each_graph_once_whatever_the_order(secs, count, chance) -> None:
    graphs = [fake_graph(f"g{i}", elements=i + 1) for i in range(len(secs))]
    costs = Costs()
    for graph, each in zip(graphs, secs, strict=True):
        costs.add(graph, Cost(each, each, 0))
    shuffled = list(graphs)
    chance.shuffle(shuffled)
    parts = [select(graphs, Shard(i, count), costs) for i in range(count)]
    assert sorted(g.name for part in parts for g in part) == sorted(g.name for g in graphs)
    for i, part in enumerate(parts):
        assert {g.name for g in select(shuffled, Shard(i, count), costs)} == {g.name for g in part}
    # Graham's bound: no shard is longer than 4/3 of the best, and the best is no less than either of these.
    longest = max((sum(costs.expect(g).secs for g in part) for part in parts), default=0)  # type: ignore[union-attr]
    assert longest <= sum(secs) / count + max(secs, default=0) * (1 - 1 / count) + 1e-6


def test_the_engine_tells_which_shard_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="neither"):
        parse_shard("auto/4")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "5")
    assert parse_shard("auto/4") == Shard(2, 4)
    assert parse_shard("1/4") == Shard(1, 4), "what is given goes before"
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    with pytest.raises(UsageError, match="JOB_COMPLETION_INDEX and SLURM_ARRAY_TASK_ID"):
        parse_shard("auto/4")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert parse_shard("auto/4") == Shard(0, 4)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "4")
    with pytest.raises(UsageError, match="no shard 4 of 4"):
        parse_shard("auto/4")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "x")
    with pytest.raises(UsageError, match="not a number"):
        parse_shard("auto/4")


@pytest.mark.parametrize("text", ["", "4", "4/4", "-1/4", "1/0", "a/b", "1/2/3", "auto", "٣/4"])
def test_what_names_no_shard_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shard(text)
