"""Prometheus' text format of stats: what its parser would take, with the same figures as --json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.main import run
from graphcache.local.memo import memo_of
from graphcache.lookup import count, look_up
from graphcache.store.find import find
from graphcache.store.local import LocalStore
from graphcache.store.read_only import ReadOnly
from graphcache.trust.guard import Guard
from graphcache.trust.trusted import Trust
from tests.store.fakes import fake_artifact, fake_facts, fake_key, fake_verdict
from tests.support.fake_build import FakeMachine, fake_toolchain
from tests.support.fake_graphs import fake_graph

# A sample line, by the format's own grammar.
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{catalog="((?:[^"\\\n]|\\.)*)"\} ([-+0-9.e]+)')


def test_prometheus_gets_the_figures_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LocalStore(tmp_path)
    for number, catalog in enumerate(["adamw", "adamw", 'odd"\\\nname']):
        key = fake_key(number)
        store.commit(key, fake_artifact(key), fake_facts(f"g{number}", catalog=catalog))
    assert run(["stats", "--cache", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert run(["stats", "--cache", str(tmp_path), "--format", "prometheus"]) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            label = re.sub(r"\\(.)", lambda each: {"n": "\n"}.get(each[1], each[1]), sample[2])
            found[sample[1], label] = float(sample[3])
    assert found["graphcache_entries", "adamw"] == 2
    for catalog, totals in facts["catalogs"].items():
        assert found["graphcache_bytes", catalog] == totals["size_bytes"]
        assert found["graphcache_compile_seconds", catalog] == totals["compile_secs"]


def miss(store: LocalStore, **toolchain: str) -> str | None:
    key = fake_key(1, settings={"tactic": "a"}, **toolchain)
    return find(store, key.program, {n: v for n, v in key.parts.items() if n != "program"}).miss


def test_a_miss_has_the_kind_of_its_reason(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert miss(store) == "not built"
    other = fake_key(1, settings={"tactic": "b"})
    store.commit(other, fake_artifact(other), fake_facts())
    assert miss(store) == "settings"
    assert miss(store, torch="2.9.0") == "toolchain"
    key = fake_key(1, settings={"tactic": "a"})
    entry = store.commit(key, fake_artifact(key), fake_facts())
    assert miss(store) is None
    assert miss(LocalStore(tmp_path, Guard(trust=Trust({})))) == "unsigned"
    store.record_verdict(fake_verdict(entry, "disproven"))
    assert miss(store) == "disproven"
    store.layout.verdict(key).unlink()
    path = store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert miss(ReadOnly(tmp_path)) == "damaged"


def test_builds_and_look_ups_count_hits_and_misses_by_catalog_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine(tmp_path, monkeypatch)
    graphs = [fake_graph("g0", 1), fake_graph("g1", 2), fake_graph("bad", 3, error="Not importable: aten::mystery")]
    machine.build(graphs)
    machine.build(graphs)
    cache = str(machine.store.root)
    assert run(["stats", "--cache", cache, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["misses"] == {"fake": {"refused": 1, "source": 3}}
    assert facts["total"]["hits"] == 2
    items = look_up(graphs, store=machine.store, toolchain={**fake_toolchain(), "torch": "0.other"})
    with memo_of(machine.store.root) as memo:
        count(items, memo)
    assert run(["stats", "--cache", cache, "--format", "prometheus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'graphcache_misses{catalog="fake",reason="source"} 6' in lines
    assert run(["stats", "--cache", cache]) == 0
    assert re.search(r"fake +source +6", capsys.readouterr().out)
