"""The log of builds: each build's line is there, whole, whoever writes at the same time and whatever is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cli.main import run
from graphcache.remote.tiered import TieredStore
from graphcache.remote.url import parse
from graphcache.store import builds
from graphcache.store.builds import BuildRecord, Built
from graphcache.store.gc import DAY_SECS, Limits, plan
from graphcache.store.local import LocalStore
from graphcache.trust.guard import Guard
from graphcache.trust.keys import signer_of_environment
from graphcache.verify.integrity import verify
from tests.store.fakes import TOOLCHAIN
from tests.store.processes import kill, run_all, start
from tests.support.fake_build import FakeMachine
from tests.support.fake_graphs import fake_graph

GRAPHS = [fake_graph(f"g{i}", elements=i + 1) for i in range(3)]
REFUSED = fake_graph("refused", elements=99, error="Not importable: aten::mystery")


def built(number: int) -> Built:
    return Built(f"g{number}", "fake", "compiled", f"{number:064x}", f"{number + 1:064x}")


def log(store: LocalStore, graphs: int) -> BuildRecord:
    """A build's line, written anew after each graph."""
    record, before = BuildRecord.begin(TOOLCHAIN), None
    for number in range(graphs):
        record = record.with_built(built(number))
        store.record_build(record, before)
        before = record
    return record


def test_a_build_logs_what_it_compiled_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path, monkeypatch)
    machine.build([*GRAPHS, REFUSED])
    ((record, signer),) = machine.store.builds()
    assert signer is None
    states = {each.graph: each.state for each in record.built}
    assert states == {"g0": "compiled", "g1": "compiled", "g2": "compiled", "refused": "failed"}
    entries = {entry.key.digest: entry.artifact_digest for entry in machine.store.entries()}
    assert {each.key: each.artifact for each in record.built if each.artifact} == entries
    assert record.toolchain["furiosa-torch"] == "0.fake"
    machine.build([*GRAPHS, REFUSED])
    assert len(machine.store.builds()) == 1, "nothing was compiled"


def test_a_build_that_is_killed_has_logged_what_it_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path, monkeypatch)
    slow = fake_graph("slow", elements=9, secs=600)
    child = start(lambda: machine.build([GRAPHS[0], slow], jobs=2) and None)
    until = time.monotonic() + 60
    while not machine.store.builds():
        assert time.monotonic() < until
        time.sleep(0.02)
    kill(child)
    ((record, _),) = machine.store.builds()
    assert [each.graph for each in record.built] == ["g0"]


def test_writers_at_the_same_time_lose_no_line(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "shared")
    run_all([lambda: log(store, 5) and None] * 8)
    lines = store.builds()
    assert [len(record.built) for record, _ in lines] == [5] * 8
    assert store.faults == []
    report = verify(store)
    assert (report.sound, report.strays) == (True, ())


def test_a_long_build_goes_on_in_another_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "MOST_GRAPHS", 3)
    store = LocalStore(tmp_path)
    log(store, 7)
    assert sorted(len(record.built) for record, _ in store.builds()) == [1, 3, 3]


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    bad, good = log(store, 1), log(store, 2)
    path = store.layout.build(bad.id)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"compiled", b"failed__"))
    assert [record for record, _ in store.builds()] == [good]
    assert len(store.faults) == 1


def test_lines_are_signed_and_others_are_not_shown_where_signatures_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, trust, cache = tmp_path / "key.pem", tmp_path / "trust.json", tmp_path / "cache"
    assert run(["keygen", str(key), "--trust", str(trust), "--json"]) == 0
    public = json.loads(capsys.readouterr().out)["public"]
    monkeypatch.setenv("GRAPHCACHE_SIGNING_KEY_FILE", str(key))
    signed = log(LocalStore(cache, Guard(signer_of_environment())), 3)
    log(LocalStore(cache), 1)
    assert len(list(LocalStore(cache).layout.signature_files())) == 1, "of what a line was before, none is left"
    assert plan(LocalStore(cache), Limits(), now=time.time() + 400 * DAY_SECS).leftovers == ()
    monkeypatch.delenv("GRAPHCACHE_SIGNING_KEY_FILE")
    monkeypatch.setenv("GRAPHCACHE_TRUST", str(trust))
    assert run(["log", "--cache", str(cache), "--json"]) == 0
    shown = capsys.readouterr()
    (line,) = json.loads(shown.out)["builds"]
    assert (line["id"], line["signer"]) == (signed.id, public)
    assert "not signed" in shown.err


def test_a_remote_has_the_lines_of_all_that_push_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote = str(tmp_path / "remote")
    pods = [TieredStore(tmp_path / name, [parse(remote)], push=True) for name in "ab"]
    lines = [log(pod, 2) for pod in pods]
    late = LocalStore(tmp_path / "c")
    lines.append(log(late, 1))
    assert run(["push", "--cache", str(late.root), "--remote", remote]) == 0
    capsys.readouterr()
    assert run(["log", "--remote", remote, "--json"]) == 0
    assert {each["id"] for each in json.loads(capsys.readouterr().out)["builds"]} == {line.id for line in lines}
    assert run(["log", "--remote", remote, f"{0:064x}"]) == 0
    assert "builds    3" in capsys.readouterr().out
    assert run(["log", "--remote", remote, f"{1:064x}"]) == 0
    shown = capsys.readouterr().out
    assert "builds    2" in shown
    assert "g0, g1" in shown
