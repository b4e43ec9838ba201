"""A folder that we may read and not write, or not even read: look-up, verify and loading work, or say what is wrong."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from graphcache.errors import CorruptError, StoreError
from graphcache.store.files import check_writable
from graphcache.store.gc import Limits, plan
from graphcache.store.local import LocalStore
from graphcache.store.read_only import ReadOnly
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_failure, fake_key
from tests.store.processes import run_unprivileged

KEY = fake_key()


@pytest.fixture
def foreign():
    """A store of someone else, which this process (see `run_unprivileged`) may read only; `tmp_path` is private."""
    folder = Path(tempfile.mkdtemp())
    store = LocalStore(folder / "cache")
    store.commit(KEY, fake_artifact(KEY), fake_facts())
    set_modes(folder, 0o555, 0o444)
    yield store
    set_modes(folder, 0o755, 0o644)
    shutil.rmtree(folder)


def set_modes(root: Path, folder_mode: int, file_mode: int) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(folder_mode if path.is_dir() else file_mode)


def test_look_up_loading_verify_and_a_gc_plan_work(foreign):
    def read():
        entry = foreign.lookup(KEY)
        assert foreign.open(entry).key == KEY
        assert list(foreign.entries()) == foreign.by_program(KEY.program) == [entry]
        assert verify(foreign).sound
        assert len(plan(foreign, Limits(max_size_bytes=0)).evictions) == 1
        assert foreign.failures() == []

    run_unprivileged(read)


def test_a_commit_is_a_clear_error_that_names_the_owner(foreign):
    def write():
        with pytest.raises(StoreError, match="Permission denied") as caught:
            foreign.commit(fake_key(1), fake_artifact(fake_key(1)), fake_facts())
        assert f"belongs to user {foreign.root.stat().st_uid}" in caught.value.hint
        with pytest.raises(StoreError, match="Permission denied"):
            foreign.record_failure(fake_failure(KEY))
        # What is there already needs no writing.
        assert foreign.commit(KEY, fake_artifact(KEY), fake_facts()) == foreign.lookup(KEY)
        with foreign.claim(KEY) as alone:
            assert alone

    run_unprivileged(write)


def test_damage_is_refused_in_place(foreign):
    path = foreign.layout.object(foreign.lookup(KEY).artifact_digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    def read():
        assert foreign.lookup(KEY) is None
        assert [(fault.path, fault.quarantined) for fault in foreign.faults] == [(foreign.layout.relative(path), None)]
        assert not verify(foreign).sound

    run_unprivileged(read)
    assert path.exists()


def test_what_cannot_be_read_at_all_is_an_error_and_no_miss(foreign):
    """A miss would compile everything again, in silence."""
    foreign.root.chmod(0)

    def read():
        for act in (lambda: foreign.lookup(KEY), lambda: list(foreign.entries()), lambda: verify(foreign)):
            with pytest.raises(StoreError, match="Permission denied"):
                act()

    run_unprivileged(read)
    foreign.root.chmod(0o755)


def test_a_store_used_read_only_writes_nothing(store):
    reader = ReadOnly(store.root)
    for act in (
        lambda: reader.commit(KEY, fake_artifact(KEY), fake_facts()),
        lambda: reader.record_failure(fake_failure(KEY)),
        lambda: reader.clear_failure(KEY),
    ):
        with pytest.raises(StoreError, match="read-only"):
            act()
    with reader.claim(KEY) as alone:
        assert alone
    assert not store.root.exists()


def test_a_store_used_read_only_reads(store):
    entry = store.commit(KEY, fake_artifact(KEY), fake_facts())
    before = sorted(os.listdir(store.root))
    reader = ReadOnly(store.root)
    assert reader.lookup(KEY) == entry
    assert reader.open(entry).key == KEY
    store.layout.object(entry.artifact_digest).unlink()
    with pytest.raises(CorruptError):
        reader.open(entry)
    assert sorted(os.listdir(store.root)) == before


def test_whether_a_folder_can_be_written_is_told_without_writing(foreign):
    def look():
        mine = Path(tempfile.mkdtemp())
        (mine / "file").write_text("")
        (mine / "link").symlink_to("nowhere")
        check_writable(mine / "not" / "yet")
        for folder, code, named in (
            (foreign.root, errno.EACCES, foreign.root),
            (foreign.root / "not" / "yet", errno.EACCES, foreign.root),
            (mine / "file", errno.ENOTDIR, mine / "file"),
            (mine / "file" / "not yet", errno.ENOTDIR, mine / "file"),
            (mine / "link" / "not yet", errno.ENOTDIR, mine / "link"),
        ):
            with pytest.raises(OSError, match=os.strerror(code)) as caught:
                check_writable(folder)
            assert (caught.value.errno, caught.value.filename) == (code, str(named))
        assert sorted(path.name for path in mine.iterdir()) == ["file", "link"]
        shutil.rmtree(mine)

    run_unprivileged(look)
