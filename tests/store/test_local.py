"""The store on plain files: look-up, commit, failures; one consistent pair for a key, wherever the folder is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphcache.errors import CorruptError, StoreError
from graphcache.key import Key
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_artifact, fake_facts, fake_failure, fake_key

KEY = fake_key()


def commit(store, key=KEY, salt="", name="fake[8]"):
    return store.commit(key, fake_artifact(key, salt=salt), fake_facts(name))


def all_files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


def test_what_is_committed_is_found_again(store):
    entry = commit(store)
    for opened in (store, LocalStore(store.root)):
        assert opened.lookup(KEY) == entry
        assert opened.by_program(KEY.program) == [entry]
        assert list(opened.entries()) == [entry]
        assert opened.open(entry).as_bytes() == fake_artifact(KEY)
        assert opened.faults == []


def test_an_empty_store_holds_nothing_and_makes_no_folder(store):
    assert store.lookup(KEY) is None
    assert store.by_program(KEY.program) == []
    assert list(store.entries()) == []
    assert store.failure(KEY) is None
    assert not store.root.exists()


def test_an_entry_is_two_files_and_nothing_else_is_left(store):
    entry = commit(store)
    assert all_files(store.root) == [
        f"entries/{KEY.program[:2]}/{KEY.program}/{KEY.digest}.json",
        f"objects/{entry.artifact_digest[:2]}/{entry.artifact_digest}.safetensors",
    ]


def test_a_second_commit_of_the_same_bytes_changes_nothing(store):
    first = commit(store)
    before = {path: os.stat(store.root / path).st_ino for path in all_files(store.root)}
    assert commit(store) == first
    assert {path: os.stat(store.root / path).st_ino for path in all_files(store.root)} == before


def test_the_first_of_two_commits_with_different_bytes_wins(store):
    first = commit(store, salt="one")
    assert commit(store, salt="two") == first
    assert store.open(store.lookup(KEY)).as_bytes() == fake_artifact(KEY, salt="one")


def test_each_changed_part_is_a_miss(store):
    commit(store)
    for part in KEY.parts:
        changed = "cd" * 32 if part == "program" else "another"
        assert store.lookup(Key({**KEY.parts, part: changed})) is None
        assert store.lookup(Key({**KEY.parts, f"more-{part}": "x"})) is None


def test_entries_are_sorted_whatever_the_order_of_commits(store, tmp_path):
    keys = [fake_key(number, fusion=str(fusion)) for number in range(4) for fusion in (1, 8)]
    other = LocalStore(tmp_path / "other")
    for key in keys:
        commit(store, key)
    for key in reversed(keys):
        commit(other, key)
    assert [entry.key for entry in store.entries()] == [entry.key for entry in other.entries()]
    assert len(list(store.entries())) == 8


def test_data_that_is_no_artifact_of_the_key_is_refused(store):
    whole = fake_artifact(KEY)
    for data in (b"", whole[: len(whole) // 2], whole + b"x", fake_artifact(fake_key(1))):
        with pytest.raises(CorruptError):
            store.commit(KEY, data, fake_facts())
    assert not store.root.exists()


def test_a_forced_collision_of_a_shortened_digest_serves_no_other_graph(store, monkeypatch):
    monkeypatch.setattr(Key, "digest", property(lambda self: "abcd"))
    one, other = fake_key(fusion="1"), fake_key(fusion="8")
    commit(store, one)
    assert store.lookup(other) is None
    assert store.faults == []
    assert store.open(commit(store, other)).key == other
    assert store.lookup(one) is None


def test_an_entry_that_names_another_graphs_object_is_refused(store):
    """Each file is sound by itself; only together they are wrong."""
    one, other = commit(store, fake_key(1)), commit(store, fake_key(2))
    forged = type(one)(one.key, other.object, one.facts, one.created)
    path = store.layout.entry(one.key)
    path.unlink()
    path.write_bytes(forged.encode())
    assert store.lookup(one.key) is None
    assert "another key" in store.faults[0].problem


def test_a_moved_and_a_symlinked_folder_keep_working(store, tmp_path):
    entry = commit(store)
    moved = store.root.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(moved)
    for root in (moved, tmp_path / "link"):
        assert LocalStore(root).lookup(KEY) == entry
        assert commit(LocalStore(root), fake_key(1)).key == fake_key(1)
    assert str(tmp_path) not in "".join(path.read_text("latin-1") for path in moved.rglob("*") if path.is_file())


def test_files_from_tomorrow_change_nothing(store):
    entry = commit(store)
    for path in store.root.rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert store.lookup(KEY) == entry
    assert store.faults == []


def test_files_are_readable_as_the_umask_allows_and_writable_by_nobody(store):
    commit(store)
    umask = os.umask(0)
    os.umask(umask)
    for path in store.root.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o444 & ~umask


def test_a_failure_is_kept_apart_and_cleared_by_a_commit(store):
    failure = fake_failure(KEY, graph="fake[8]", cause="killed by signal 9", log="logs/fake.log", retryable=True)
    store.record_failure(failure)
    assert store.failure(KEY) == failure
    assert store.failures() == [failure]
    assert store.lookup(KEY) is None
    assert store.failure(fake_key(1)) is None
    commit(store)
    assert store.failure(KEY) is None
    assert store.failures() == []


def test_the_last_failure_is_the_one_that_is_kept(store):
    for cause in ("first", "second"):
        store.record_failure(fake_failure(KEY, graph="fake[8]", cause=cause, log="logs/fake.log"))
    assert store.failure(KEY).cause == "second"


def test_a_log_with_an_absolute_path_is_refused(store):
    with pytest.raises(ValueError, match="relative"):
        store.record_failure(fake_failure(KEY, graph="fake[8]", log="/tmp/fake.log"))


def test_a_damaged_failure_record_is_none(store):
    store.record_failure(fake_failure(KEY, graph="fake[8]", log="logs/fake.log"))
    path = store.layout.failure(KEY)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"false", b"true "))
    assert store.failure(KEY) is None
    assert [fault.path for fault in store.faults] == [f"failures/{KEY.digest}.json"]


def test_a_file_where_the_store_should_be_is_a_named_error(tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    store = LocalStore(tmp_path / "cache")
    for act in (lambda: store.lookup(KEY), lambda: list(store.entries()), lambda: commit(store)):
        with pytest.raises(StoreError, match="cache") as caught:
            act()
        assert caught.value.hint


@pytest.mark.parametrize("program", ["..", "../../etc", "", "AB" * 32])
def test_a_program_that_is_no_digest_never_becomes_a_path(store, program):
    with pytest.raises(ValueError, match="SHA-256"):
        store.by_program(program)


def test_a_folder_that_is_a_link_to_nothing_is_named_with_where_it_leads(tmp_path):
    link = tmp_path / "cache"
    link.symlink_to("gone")
    with pytest.raises(StoreError) as caught:
        commit(LocalStore(link))
    assert caught.value.hint.startswith(f"{link} is a link to gone, which is not there")


def test_a_folder_is_a_store_once_it_has_a_file_of_one(store):
    folder = store.root / "objects" / "ab"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"theirs")
    assert not store.layout.is_store()
    store.record_failure(fake_failure(KEY, graph="fake[8]", cause="killed", log="logs/fake.log", retryable=True))
    assert store.layout.is_store()
    store.clear_failure(KEY)
    assert not store.layout.is_store()
    commit(store)
    assert store.layout.is_store()
