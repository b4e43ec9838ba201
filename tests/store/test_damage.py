"""Damage of every kind, at every place: never served, reported, quarantined, and compiled again by the next build."""

from __future__ import annotations

import os
import shutil

import pytest

from graphcache.errors import CorruptError
from graphcache.store.local import LocalStore
from graphcache.store.read_only import ReadOnly
from tests.store.fakes import fake_artifact, fake_facts, fake_key

KEY = fake_key()
DATA = fake_artifact(KEY)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """A thousand repairs: what survives a power cut is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def entry(store):
    return store.commit(KEY, DATA, fake_facts())


def damage(path, data: bytes) -> None:
    """Puts `data` where the store had written, as a failing disk would."""
    path.chmod(0o644)
    path.write_bytes(data)


def expect_refused_and_repaired(store, entry, path) -> None:
    """The end of every story here: a fresh process misses, says what is wrong, and a new commit is served."""
    seen = LocalStore(store.root)
    assert seen.lookup(KEY) is None
    assert store.layout.relative(path) in [fault.path for fault in seen.faults]
    assert all(fault.quarantined for fault in seen.faults)
    assert not path.exists()
    assert seen.lookup(KEY) is None
    assert list(seen.entries()) == []
    again = seen.commit(KEY, DATA, fake_facts())
    assert again.object == entry.object
    assert LocalStore(store.root).open(again).as_bytes() == DATA
    shutil.rmtree(store.layout.quarantine)


def test_a_flipped_byte_anywhere_in_an_object(store, entry):
    path = store.layout.object(entry.artifact_digest)
    for at in range(len(DATA)):
        damage(path, DATA[:at] + bytes([DATA[at] ^ 0x10]) + DATA[at + 1 :])
        expect_refused_and_repaired(store, entry, path)


def test_a_flipped_byte_anywhere_in_an_entry(store, entry):
    path = store.layout.entry(KEY)
    written = path.read_bytes()
    for at in range(len(written)):
        damage(path, written[:at] + bytes([written[at] ^ 0x10]) + written[at + 1 :])
        expect_refused_and_repaired(store, entry, path)
        written = path.read_bytes()


@pytest.mark.parametrize("kind", ["object", "entry"])
def test_a_truncation_at_any_length(store, entry, kind):
    path = store.layout.entry(KEY) if kind == "entry" else store.layout.object(entry.artifact_digest)
    for length in range(0, path.stat().st_size, 7):
        damage(path, path.read_bytes()[:length])
        expect_refused_and_repaired(store, entry, path)


@pytest.mark.parametrize("kind", ["object", "entry"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: bytes(len(data)),
        lambda data: data + b"\n",
        lambda data: data + data,
        lambda data: b"version https://git-lfs.github.com/spec/v1\n",
        lambda data: b"null",
        lambda data: b"[" * 200_000,
    ],
    ids=["empty", "zeros", "a byte more", "twice", "an LFS pointer", "null", "brackets"],
)
def test_other_contents(store, entry, kind, change):
    path = store.layout.entry(KEY) if kind == "entry" else store.layout.object(entry.artifact_digest)
    damage(path, change(path.read_bytes()))
    expect_refused_and_repaired(store, entry, path)


def test_a_page_of_zeros_of_the_right_size(store):
    data = fake_artifact(KEY, runnable_bytes=5 * 4096)
    entry = store.commit(KEY, data, fake_facts())
    path = store.layout.object(entry.artifact_digest)
    for start in range(0, len(data) - 4096, 4096):
        damage(path, data[:start] + bytes(4096) + data[start + 4096 :])
        seen = LocalStore(store.root)
        with pytest.raises(CorruptError, match="XXH3"):
            seen.open(entry)
        assert [fault.path.split("/")[0] for fault in seen.faults] == ["objects", "entries"]
        assert store.commit(KEY, data, fake_facts()).object == entry.object


def test_an_entry_without_its_object(store, entry):
    store.layout.object(entry.artifact_digest).unlink()
    with pytest.raises(CorruptError, match="gone") as caught:
        store.open(entry)
    assert "compiles it again" in caught.value.hint
    assert store.lookup(KEY) is None
    assert [fault.quarantined is None for fault in store.faults] == [True, False]
    assert store.commit(KEY, DATA, fake_facts()).object == entry.object


@pytest.mark.parametrize("kind", ["object", "entry"])
def test_a_folder_or_a_pipe_in_the_place_of_a_file(store, entry, kind):
    path = store.layout.entry(KEY) if kind == "entry" else store.layout.object(entry.artifact_digest)
    for make in (os.mkdir, os.mkfifo):
        path.unlink()
        make(path)
        expect_refused_and_repaired(store, entry, path)


def test_an_entry_in_another_entrys_place(store, entry):
    other = store.commit(fake_key(1), fake_artifact(fake_key(1)), fake_facts())
    damage(store.layout.entry(KEY), store.layout.entry(other.key).read_bytes())
    assert store.lookup(KEY) is None
    assert "whose place is" in store.faults[0].problem
    assert store.lookup(other.key) == other


def test_a_whole_object_in_another_objects_place(store, entry):
    """As two clients of a network file system might see it for a minute."""
    damage(store.layout.object(entry.artifact_digest), fake_artifact(KEY, salt="other"))
    expect_refused_and_repaired(store, entry, store.layout.object(entry.artifact_digest))


def test_damage_of_one_entry_leaves_the_others(store, entry):
    others = [store.commit(fake_key(n), fake_artifact(fake_key(n)), fake_facts()) for n in range(1, 4)]
    damage(store.layout.entry(KEY), b"")
    assert sorted(e.key.digest for e in store.entries()) == sorted(e.key.digest for e in others)


def test_evicted_since_it_was_read_is_a_miss_and_no_fault(store, entry):
    store.layout.entry(KEY).unlink()
    store.layout.object(entry.artifact_digest).unlink()
    with pytest.raises(CorruptError):
        store.open(entry)
    assert store.faults == []


def test_a_good_object_that_came_in_the_meantime_stays(store, entry, monkeypatch):
    """Between our read of bad bytes and our quarantine, another process repairs the pair."""
    path = store.layout.object(entry.artifact_digest)
    damage(path, b"")
    fault_pair = store._fault_pair

    def repaired_just_before(*args):
        damage(path, DATA)
        fault_pair(*args)

    monkeypatch.setattr(store, "_fault_pair", repaired_just_before)
    with pytest.raises(CorruptError):
        store.open(entry)
    assert LocalStore(store.root).lookup(KEY) == entry


def test_a_store_used_read_only_refuses_and_leaves_the_file(store, entry):
    path = store.layout.object(entry.artifact_digest)
    damage(path, DATA[:-1])
    reader = ReadOnly(store.root)
    assert reader.lookup(KEY) is None
    assert [(fault.path, fault.quarantined) for fault in reader.faults] == [(store.layout.relative(path), None)]
    assert path.read_bytes() == DATA[:-1]
    assert store.layout.entry(KEY).exists()
