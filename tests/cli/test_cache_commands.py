"""ls, show, verify, stats and gc: the human form, --json, and exit codes."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import pytest

from cli.main import run
from graphcache.catalog import CatalogOptions
from graphcache.graph import Listing
from graphcache.local.memo import memo_of
from graphcache.local.usage import Ledger
from graphcache.manifest.file import write_manifest
from graphcache.manifest.manifest import Compiled, Manifest
from graphcache.source.hash import SourceHash
from graphcache.store.base import Object
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_facts, fake_failure, fake_key

NAMES = [("adamw", "adamw[64]"), ("adamw", "adamw[128]"), ("head", "lse[8]")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    return LocalStore(tmp_path / "cache")


@pytest.fixture
def entries(store):
    keys = [fake_key(number, settings={"tactic": "compute-bound"}, fusion="8") for number in range(3)]
    facts = [fake_facts(name, catalog=catalog) for catalog, name in NAMES]
    return [store.commit(key, fake_artifact(key), fact) for key, fact in zip(keys, facts, strict=True)]


@pytest.fixture
def invoke(capsys):
    def command(*args: str, code: int = 0):
        assert run(args) == code
        return capsys.readouterr()

    return command


def rewrite(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize("command", [["ls"], ["show", "ab"], ["verify"], ["stats"], ["gc"]])
def test_a_cache_that_is_not_there_is_an_error_that_says_where_it_was_looked_for(store, invoke, command):
    printed = invoke(*command, code=2)
    assert str(store.root) in printed.err
    assert not store.root.exists()


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["stats"], ["gc", "--yes"], ["diff"]])
def test_a_folder_that_is_no_store_stays_as_it_is(store, invoke, tmp_path, monkeypatch, command):
    """A wrong --cache of a command that only looks."""
    theirs = store.root / "objects" / "ab" / "weights.safetensors"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    before = sorted(store.root.rglob("*"))
    monkeypatch.chdir(tmp_path)
    invoke(*command, code=2 if command == ["diff"] else 0)
    assert sorted(store.root.rglob("*")) == before


@pytest.mark.parametrize("command", [["ls"], ["show", "ab"], ["verify"], ["stats"], ["gc", "--yes"]])
def test_a_folder_with_something_else_in_it_is_no_cache(store, entries, invoke, tmp_path, command):
    theirs = tmp_path / "checkpoint"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    assert f"{theirs} is no cache" in invoke(*command, "--cache", str(theirs), code=2).err
    (store.root / "README").write_text("Whose cache this is.")
    assert "is no cache" not in invoke(*command, code=2 if "show" in command else 0).err


def test_a_cache_whose_last_entry_gc_deleted_is_one(store, entries, invoke):
    invoke("gc", "--max-size", "0B", "--yes")
    assert list(store.layout.entry_files()) == []
    for command in ("ls", "stats", "verify"):
        invoke(command)


def test_a_cache_that_is_a_link_to_nothing_says_so(store, invoke):
    store.root.symlink_to(store.root.with_name("gone"))
    assert "gone, which is not there" in invoke("ls", code=2).err


def test_ls_lists_entries_by_catalog_and_name_with_totals_last(entries, invoke):
    lines = invoke("ls").out.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["adamw[128]", "adamw[64]", "lse[8]"]
    assert [line.split()[3] for line in lines[1:4]] == [entries[i].graph.shapes for i in (1, 0, 2)]
    assert "2026.4.0, fusion 8, tactic compute-bound" in lines[1]
    assert lines[-2].split() == ["entries", "3"]
    assert f"{sum(entry.size_bytes for entry in entries):,}" in lines[-1]


def test_ls_is_the_same_whatever_the_order_of_commits(store, entries, invoke, tmp_path):
    other = LocalStore(tmp_path / "other")
    for entry in random.sample(entries, 3):
        other.adopt(entry, fake_artifact(entry.key))
    assert invoke("ls").out == invoke("ls", "--cache", str(other.root)).out


def test_ls_json_holds_the_entries_whole(store, entries, invoke):
    listed = json.loads(invoke("ls", "--json").out)
    assert {entry["key_digest"] for entry in listed["entries"]} == {entry.key.digest for entry in entries}
    assert listed["entries"][0]["key"]["settings.tactic"] == "compute-bound"
    assert listed["size_bytes"] == sum(entry.size_bytes for entry in entries)


def test_ls_warns_of_a_damaged_entry_and_lists_the_others(store, entries, invoke):
    rewrite(store.layout.entry(entries[0].key), b"damaged")
    printed = invoke("ls")
    assert "warning[corrupt]" in printed.err
    assert entries[0].key.digest in printed.err
    assert "adamw[64]" not in printed.out


def test_show_takes_the_first_digits_of_a_key(store, entries, invoke):
    for digits in (12, 64):
        out = invoke("show", entries[2].key.digest[:digits]).out
        assert entries[2].key.digest in out
        assert entries[2].artifact_digest in out
        assert "settings.tactic" in out
        assert "lse[8]" in out


def test_show_json(store, entries, invoke):
    shown = json.loads(invoke("show", entries[2].key.digest, "--json").out)
    assert shown["graph"]["name"] == "lse[8]"
    assert shown["file"] == str(store.layout.object(entries[2].artifact_digest))
    assert shown["runnable_bytes"] + shown["dfg_bytes"] < shown["object"]["size_bytes"]


def test_show_of_a_prefix_of_several_lists_them(store, entries, invoke):
    printed = invoke("show", "", code=2)
    assert "3 entries" in printed.err
    assert all(f"{entry.key.digest[:12]} (" in printed.err for entry in entries)
    assert "no entry" in invoke("show", "zz", code=2).err


def test_show_of_a_damaged_artifact_is_an_error(store, entries, invoke):
    rewrite(store.layout.object(entries[0].artifact_digest), b"damaged")
    printed = invoke("show", entries[0].key.digest, code=1)
    assert "error[corrupt]" in printed.err
    assert "quarantine/" in printed.err


def test_verify_of_a_sound_cache(entries, invoke):
    assert "corrupt  0" in invoke("verify").out
    assert json.loads(invoke("verify", "--json").out)["sound"] is True


def test_verify_says_which_is_corrupt_and_exits_with_1(store, entries, invoke):
    rewrite(store.layout.object(entries[0].artifact_digest), b"damaged")
    rewrite(store.layout.entry(entries[1].key), b"damaged")
    out = invoke("verify", code=1).out
    assert entries[0].artifact_digest in out
    assert entries[1].key.digest in out
    assert "entries      1 whole" in out
    again = invoke("verify").out.splitlines()
    assert "corrupt      0" in again
    assert "quarantined  3 now or before" in again, "an artifact, its entry and another one"
    assert json.loads(invoke("verify", "--json").out)["quarantined"] == 3


def test_verify_looks_at_failures_and_remembered_programs(store, entries, invoke):
    Programs(store.root).remember("ab" * 32, entries[0].graph, "2.10.0", entries[0].program)
    store.record_failure(fake_failure(fake_key(9), cause="killed", log="logs/fake.log", retryable=True))
    assert "corrupt  0" in invoke("verify").out
    (program,), (failure,) = store.layout.program_files(), store.layout.failure_files()
    for path in (program, failure):
        rewrite(path, b"junk")
    report = json.loads(invoke("verify", "--json", code=1).out)
    assert {fault["path"] for fault in report["faults"]} == {store.layout.relative(p) for p in (program, failure)}
    assert all((store.root / fault["quarantined"]).read_bytes() == b"junk" for fault in report["faults"])
    invoke("verify")


def test_verify_json_names_the_faults(store, entries, invoke):
    rewrite(store.layout.entry(entries[1].key), b"damaged")
    report = json.loads(invoke("verify", "--json", code=1).out)
    assert [fault["path"] for fault in report["faults"]] == [store.layout.relative(store.layout.entry(entries[1].key))]
    assert report["faults"][0]["quarantined"].startswith("quarantine/")


def test_verify_of_one_key(store, entries, invoke):
    rewrite(store.layout.object(entries[0].artifact_digest), b"damaged")
    assert "entries  1 whole" in invoke("verify", entries[1].key.digest[:20]).out
    invoke("verify", entries[0].key.digest[:20], code=1)
    assert "no entry" in invoke("verify", "zz", code=2).err


def test_verify_lists_what_killed_jobs_left(store, entries, invoke):
    store.layout.entry(entries[0].key).unlink()
    (store.root / "objects" / f".tmp-{1:032x}").write_text("half")
    lines = invoke("verify").out.splitlines()
    assert any(line.startswith("orphans") for line in lines)
    assert any(line.startswith("temporaries") for line in lines)


@pytest.mark.parametrize("command", [("verify", "--rebuild"), ("prove",)])
def test_no_function_is_run_that_only_the_store_names(store, invoke, tmp_path, command):
    """Whoever may write to a shared cache may write such an entry."""
    key, marker = fake_key(fusion="8"), tmp_path / "marker"
    facts = fake_facts()
    hostile = replace(facts.graph, function="os:system", args=(), constants={"command": f"touch {marker}"})
    store.commit(key, fake_artifact(key), replace(facts, graph=hostile))
    report = json.loads(invoke(*command, "--json").out)
    (found,) = report["rebuild"] if "rebuild" in report else report["graphs"]
    assert found["state"] == "skipped"
    assert "os:system" in (found.get("detail") or found["reason"])
    assert not marker.exists()


def test_stats_by_catalog_with_what_hits_saved(store, entries, invoke):
    with memo_of(store.root) as memo:
        for _ in range(4):
            Ledger(memo).record([entries[0].key.digest])
    store.record_failure(fake_failure(fake_key(9), cause="killed", log="logs/fake.log", retryable=True))
    facts = json.loads(invoke("stats", "--json").out)
    assert facts["catalogs"]["adamw"]["entries"] == 2
    assert facts["catalogs"]["adamw"]["saved_secs"] == 4 * entries[0].cost.wall_secs
    assert facts["total"]["size_bytes"] == sum(entry.size_bytes for entry in entries)
    assert (facts["failures"], facts["failures_retryable"]) == (1, 1)
    out = invoke("stats").out
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["adamw", "head", "all"]
    assert "10 s" in out


def test_stats_of_an_empty_cache(store, invoke):
    store.root.mkdir()
    assert json.loads(invoke("stats", "--json").out)["total"]["entries"] == 0
    assert "all" in invoke("stats").out


def test_gc_is_a_dry_run_unless_yes(store, entries, invoke):
    out = invoke("gc", "--max-size", "0B").out
    assert "Nothing was deleted" in out
    assert "to delete  3" in out
    assert len(list(store.entries())) == 3
    out = invoke("gc", "--max-size", "0B", "--yes").out
    assert "deleted  3" in out
    assert list(store.entries()) == []
    assert "to delete  0" in invoke("gc").out


def test_gc_json(store, entries, invoke):
    os.utime(store.root)
    planned = json.loads(invoke("gc", "--max-size", f"{2 * entries[0].size_bytes + 100}B", "--json").out)
    assert planned["deleted"] is False
    assert len(planned["evictions"]) == 1
    assert planned["kept"] == 2
    assert planned["freed_bytes"] + planned["kept_bytes"] == sum(entry.size_bytes for entry in entries)


def test_gc_keeps_what_was_used_last(store, entries, invoke):
    with memo_of(store.root) as memo:
        Ledger(memo).record([entries[1].key.digest], now_secs=4e9)
    invoke("gc", "--max-size", f"{entries[1].size_bytes}B", "--yes")
    assert [entry.key for entry in store.entries()] == [entries[1].key]


def test_gc_refuses_a_size_beyond_all_numbers(store, entries, invoke):
    for option, unit in (("--max-size", "TB"), ("--max-age", "w")):
        assert "a number of 400 digits" in invoke("gc", option, 400 * "9" + unit, "--yes", code=2).err


@pytest.mark.parametrize("value", ["", "10", "GB", "-1GB", "1e3GB", "10 parsecs", "1.5.2GB"])
def test_gc_refuses_a_size_that_is_none(store, entries, invoke, value):
    assert "units" in invoke("gc", "--max-size", value, code=2).err
    assert len(list(store.entries())) == 3


def test_gc_takes_sizes_and_ages_with_units(store, entries, invoke):
    for size in ("1 GB", "1.5gb", "300kB", "1TB"):
        assert "to delete  0" in invoke("gc", "--max-size", size).out
    for age in ("1h", "0.5d", "52w"):
        assert "to delete  0" in invoke("gc", "--max-age", age).out


def write_kept(path, entry, *, compiled=True):
    """A manifest of one graph, that of `entry`, and one that is planned and has no key; without `compiled`, of two
    such."""
    source = SourceHash("ab" * 32, {"tests/store/fakes.py::nothing": "ab" * 8})
    toolchain = {name: entry.key.parts[name] for name in (*TOOLCHAIN, "fusion")}
    planned = fake_facts("planned").graph
    manifest = Manifest.of(
        "fake",
        config=None,
        groups=(),
        catalogs=["adamw"],
        options=CatalogOptions(),
        toolchain=toolchain,
        listing=Listing((entry.graph, planned), ()),
        sources={entry.graph.name: source, planned.name: source},
        programs={entry.graph.name: entry.program} if compiled else {},
        compiled={entry.graph.name: Compiled.of(entry)} if compiled else {},
    )
    write_manifest(path, manifest)


@pytest.mark.parametrize("limits", [(), ("--max-size", "0B", "--max-age", "0h")], ids=["alone", "with limits"])
def test_gc_keeps_what_a_manifest_names(store, entries, invoke, tmp_path, limits):
    kept = store.commit(fake_key(7, fusion="8"), fake_artifact(fake_key(7, fusion="8")), fake_facts("kept"))
    write_kept(tmp_path / "manifest.json", kept)
    out = invoke("gc", *limits, "--keep-manifest", str(tmp_path / "manifest.json"), "--yes").out
    assert "deleted  3" in out
    assert [entry.key for entry in store.entries()] == [kept.key]


def test_gc_refuses_to_keep_what_a_manifest_of_plans_alone_names(store, entries, invoke, tmp_path):
    """It names no entry, so all of them would go."""
    write_kept(tmp_path / "manifest.json", entries[0], compiled=False)
    printed = invoke("gc", "--keep-manifest", str(tmp_path / "manifest.json"), "--yes", code=2)
    assert "manifest.json names no key" in printed.err
    assert len(list(store.entries())) == 3


def test_gc_takes_a_manifest_of_plans_alone_beside_another_one(store, entries, invoke, tmp_path):
    kept, planned = tmp_path / "kept.json", tmp_path / "planned.json"
    key = fake_key(7, fusion="8")
    entry = store.commit(key, fake_artifact(key), fake_facts("kept"))
    write_kept(kept, entry)
    write_kept(planned, entry, compiled=False)
    printed = invoke("gc", "--max-age", "0h", "--keep-manifest", str(planned), "--keep-manifest", str(kept), "--yes")
    assert f"warning[manifest]: {planned} names no key" in printed.err
    assert "kept.json" not in printed.err
    assert [each.key for each in store.entries()] == [entry.key]


def forge(store, entry):
    """Well-formed other bytes under the key of `entry`, as somebody who may write to the cache could leave them."""
    data = fake_artifact(entry.key, salt="forged")
    store.layout.entry(entry.key).unlink()
    return store.adopt(replace(entry, object=Object.of(data)), data)


def test_verify_compares_with_the_digests_of_a_manifest(store, entries, invoke, tmp_path):
    path, key = tmp_path / "manifest.json", fake_key(7, fusion="8")
    entry = store.commit(key, fake_artifact(key), fake_facts("kept"))
    write_kept(path, entry)
    assert f"manifest  {path}: 1 of 1 compared" in invoke("verify", "--manifest", str(path)).out
    forged = forge(store, entry)
    assert "corrupt  0" in invoke("verify").out, "nothing in the cache itself tells them apart"
    out = invoke("verify", "--manifest", str(path), code=1).out
    assert "other bytes  kept" in out
    assert forged.artifact_digest[:12] in out
    report = json.loads(invoke("verify", "--manifest", str(path), "--json", code=1).out)
    assert report["other_bytes"] == [
        {
            "graph": "kept",
            "key": key.digest,
            "recorded": entry.artifact_digest,
            "found": forged.artifact_digest,
        }
    ]
    others = invoke("verify", entries[1].key.digest, "--manifest", str(path), "--json").out
    assert json.loads(others)["manifests"] == [{"file": str(path), "artifacts": 1, "compared": 0}]


def test_gc_with_a_manifest_that_cannot_be_read_deletes_nothing(store, entries, invoke, tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    for name in ("manifest.json", "absent.json"):
        assert name in invoke("gc", "--keep-manifest", str(tmp_path / name), "--yes", code=2).err
    assert len(list(store.entries())) == 3
