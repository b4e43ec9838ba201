"""verify: says which file is bad, and nothing of a sound store."""

from __future__ import annotations

import pytest

from graphcache.errors import UsageError
from graphcache.store import records
from graphcache.store.base import Entry, Object
from graphcache.store.layout import TOPS
from graphcache.store.local import LocalStore
from graphcache.store.programs import RECORD_FORMAT, Programs
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_failure, fake_key


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "cache")


@pytest.fixture
def entries(store):
    keys = [fake_key(number) for number in range(4)]
    return [store.commit(key, fake_artifact(key), fake_facts()) for key in keys]


def rewrite(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


def paths_of(report):
    return [fault.path for fault in report.faults]


def test_a_sound_store(store, entries):
    report = verify(store)
    assert report.sound
    assert sorted(e.key.digest for e in report.entries) == sorted(e.key.digest for e in entries)
    assert report.size_bytes == sum(entry.size_bytes for entry in entries)
    assert (report.orphans, report.strays, report.temporaries) == ((), (), ())


def test_each_damaged_object_is_named_and_the_others_pass(store, entries):
    for entry in entries[:2]:
        path = store.layout.object(entry.artifact_digest)
        rewrite(path, path.read_bytes()[:-1] + b"!")
    report = verify(store)
    assert not report.sound
    for entry in entries[:2]:
        assert store.layout.relative(store.layout.object(entry.artifact_digest)) in paths_of(report)
    assert sorted(e.key.digest for e in report.entries) == sorted(e.key.digest for e in entries[2:])
    assert verify(store).sound


def test_forged_bytes_that_pass_the_fast_checksum_do_not_pass(store, entries, monkeypatch):
    """XXH3 is no proof against someone who chooses bytes; SHA-256 is."""
    real, forged = entries[0], fake_artifact(entries[0].key, salt="forged")
    rewrite(store.layout.object(real.artifact_digest), forged)
    lying = Object(real.artifact_digest, Object.of(forged).xxh3_128, len(forged))
    rewrite(store.layout.entry(real.key), Entry(real.key, lying, real.facts, real.created).encode())
    assert LocalStore(store.root).lookup(real.key) is not None
    report = verify(store)
    assert "SHA-256" in report.faults[0].problem
    assert store.lookup(real.key) is None


def test_an_entry_without_its_object_is_corruption(store, entries):
    store.layout.object(entries[0].artifact_digest).unlink()
    assert store.layout.relative(store.layout.entry(entries[0].key)) in paths_of(verify(store))


def test_an_object_without_an_entry_is_none(store, entries):
    store.layout.entry(entries[0].key).unlink()
    report = verify(store)
    assert report.sound
    assert report.orphans == (store.layout.relative(store.layout.object(entries[0].artifact_digest)),)


def test_a_damaged_object_without_an_entry_is_corruption(store, entries):
    store.layout.entry(entries[0].key).unlink()
    path = store.layout.object(entries[0].artifact_digest)
    rewrite(path, b"half")
    report = verify(store)
    assert paths_of(report) == [store.layout.relative(path)]
    assert report.orphans == ()


def test_files_in_the_wrong_place_are_named(store, entries):
    path = store.layout.entry(entries[0].key)
    moved = path.with_name("ab" * 32 + ".json")
    path.rename(moved)
    target = store.layout.object("cd" * 32)
    target.parent.mkdir()
    store.layout.object(entries[1].artifact_digest).rename(target)
    report = verify(store)
    assert store.layout.relative(moved) in paths_of(report)
    assert store.layout.relative(target) in paths_of(report)


@pytest.fixture
def program(store, entries):
    """The file of one program that a source is remembered to export to."""
    Programs(store.root).remember("ab" * 32, entries[0].graph, "2.10.0", entries[0].program)
    (path,) = store.layout.program_files()
    return path


def damage(path):
    rewrite(path, path.read_bytes()[:-2] + b"!\n")


def another_program(path):
    """Sealed, and no digest."""
    asked = records.unseal(RECORD_FORMAT, path.read_bytes())
    rewrite(path, records.seal(RECORD_FORMAT, {**asked, "program": "../.."}))


def another_question(path):
    """Sealed, and under the digest of another question."""
    asked = records.unseal(RECORD_FORMAT, path.read_bytes())
    rewrite(path, records.seal(RECORD_FORMAT, {**asked, "torch": "2.11.0"}))


@pytest.mark.parametrize("spoil", [damage, another_program, another_question])
def test_a_remembered_program_that_is_not_as_it_was_written_is_corruption(store, program, spoil):
    assert verify(store).sound
    spoil(program)
    report = verify(store)
    assert paths_of(report) == [store.layout.relative(program)]
    assert report.quarantined == 1
    assert not program.exists()
    assert verify(store).sound


def test_one_entry_is_looked_at_without_the_rest(store, entries, program):
    damage(program)
    assert verify(store, [entries[0].key.digest[:20]]).sound
    assert program.exists()


def test_files_that_the_store_never_writes_are_listed_and_are_no_corruption(store, entries):
    (store.root / "objects" / "README").write_text("hello")
    (store.root / "entries" / "ab").mkdir(exist_ok=True)
    (store.root / "entries" / "ab" / ".nfs000001").write_text("")
    report = verify(store)
    assert report.sound
    assert report.strays == ("entries/ab/.nfs000001", "objects/README")


def test_strays_are_listed_in_all_folders_of_the_store_and_its_own_files_are_none(store, entries):
    store.record_failure(fake_failure(entries[0].key, log=""))
    Programs(store.root).remember("a source", entries[0].graph, "2.10.0", "c" * 64)
    log = store.layout.new_log("fake[8]")
    rewrite(store.layout.object(entries[1].artifact_digest), b"half")
    theirs = [f"{top}/theirs.txt" for top in TOPS]
    # As this store named its logs once; so is one with a date named.
    theirs.append("logs/fake-8-20240131.log")
    for path in (log, *(store.root / name for name in theirs)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    with store.claim(entries[0].key):
        report = verify(store)
    assert report.strays == tuple(sorted(theirs))
    assert all(folder.is_dir() for folder in (store.root / top for top in TOPS))
    assert list((store.root / "quarantine").iterdir()) != [store.root / "quarantine" / "theirs.txt"]
    assert verify(store, [entries[0].key.digest]).strays == ()


def test_what_a_killed_write_left_is_listed_and_is_no_corruption(store, entries):
    (store.layout.object(entries[0].artifact_digest).parent / f".tmp-{1:032x}").write_bytes(b"half")
    report = verify(store)
    assert report.sound
    assert len(report.temporaries) == 1
    assert report.strays == ()


def test_one_entry_by_the_first_digits_of_its_key(store, entries):
    report = verify(store, [entries[0].key.digest[:20]])
    assert [entry.key for entry in report.entries] == [entries[0].key]


def test_a_prefix_of_nothing_is_an_error(store, entries):
    with pytest.raises(UsageError, match="no entry"):
        verify(store, ["zz"])


def test_a_damaged_entry_can_be_asked_for_too(store, entries):
    path = store.layout.entry(entries[0].key)
    rewrite(path, b"{}")
    report = verify(store, [entries[0].key.digest[:20]])
    assert paths_of(report) == [store.layout.relative(path)]
    assert report.entries == ()
