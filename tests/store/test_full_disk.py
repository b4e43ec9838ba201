"""No space, no inodes, no quota, a short write: a clear error, and nothing partial."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from graphcache.errors import StoreError
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.store.processes import finish, start

KEY = fake_key()
CALLS = ("open", "write", "fsync", "close", "link", "mkdir")


class FakeFullDisk:
    """Fails the call number `fails_at` among those that write, the way a full or broken disk does, and all after it."""

    def __init__(self, monkeypatch, code: int, fails_at: int) -> None:
        self.code, self.fails_at, self.calls = code, fails_at, 0
        self.real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            monkeypatch.setattr(os, name, lambda *args, name=name, **options: self.call(name, *args, **options))

    def call(self, name, *args, **options):
        result = None
        reads = name == "open" and not args[1] & os.O_CREAT
        if name == "close" or reads:
            # A handle is closed even when close reports that earlier writes were lost.
            result = self.real[name](*args, **options)
        self.calls += 0 if reads else 1
        if not reads and self.calls >= self.fails_at:
            raise OSError(self.code, os.strerror(self.code))
        return self.real[name](*args, **options) if name != "close" and not reads else result


def expect_nothing_partial(store) -> bool:
    """Every file is whole; returns whether the entry is there."""
    seen = LocalStore(store.root)
    report = verify(seen)
    assert report.sound
    assert report.temporaries == ()
    assert report.strays == ()
    return seen.lookup(KEY) is not None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EFBIG])
def test_a_failure_of_any_call_is_a_clear_error_and_leaves_nothing_partial(store, code):
    data = fake_artifact(KEY)
    errors = []
    for fails_at in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            FakeFullDisk(patch, code, fails_at)
            try:
                store.commit(KEY, data, fake_facts())
                break
            except StoreError as error:
                errors.append(error)
        expect_nothing_partial(store)
    assert len(errors) > 10
    assert all(str(store.root) in error.message and os.strerror(code) in error.message for error in errors)
    assert all(error.hint for error in errors)
    assert expect_nothing_partial(store)


def test_a_write_that_comes_short_is_continued(store, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    store.commit(KEY, fake_artifact(KEY), fake_facts())
    assert expect_nothing_partial(store)


def test_a_write_that_writes_nothing_is_an_error(store, monkeypatch):
    monkeypatch.setattr(os, "write", lambda handle, data: 0)
    with pytest.raises(StoreError, match="came short"):
        store.commit(KEY, fake_artifact(KEY), fake_facts())
    assert not expect_nothing_partial(store)


def test_a_real_limit_of_file_size(store):
    data = fake_artifact(KEY, runnable_bytes=100_000)

    def commit_under_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(StoreError, match="too large") as caught:
            store.commit(KEY, data, fake_facts())
        assert "ulimit" in caught.value.hint

    assert finish(start(commit_under_limit)) == 0
    assert not expect_nothing_partial(store)
    store.commit(KEY, data, fake_facts())
    assert expect_nothing_partial(store)


# Fills a file system of its own, which only a mount namespace gives; where the machine refuses one, the limit of file
# size above and the failing calls are what shows the same.
ON_A_SMALL_DISK = """
import os, subprocess, sys
from graphcache.errors import StoreError
from graphcache.store.local import LocalStore
from graphcache.store.read_only import ReadOnly
from graphcache.verify.integrity import verify
from tests.store.fakes import fake_artifact, fake_facts, fake_key

root, options = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", root], check=True)
store = LocalStore(root)
committed = []
for number in range(100):
    key = fake_key(number)
    try:
        committed.append(store.commit(key, fake_artifact(key, runnable_bytes=20_000), fake_facts()))
    except StoreError as error:
        assert "No space left" in error.message and "df -i" in error.hint, error
        break
assert 0 < len(committed) < 100
report = verify(store)
assert report.sound and not report.temporaries, report
assert sorted(e.key.digest for e in report.entries) == sorted(e.key.digest for e in committed)
subprocess.run(["mount", "-o", "remount,ro", root], check=True)
for entry in committed:
    assert store.lookup(entry.key) == entry and store.open(entry).key == entry.key
assert verify(store).sound
try:
    store.commit(fake_key(200), fake_artifact(fake_key(200)), fake_facts())
except StoreError as error:
    assert "Read-only" in error.message and "--cache" in error.hint, error
else:
    raise AssertionError("committed into a read-only file system")
"""


@pytest.mark.parametrize("options", ["size=256k", "size=64m,nr_inodes=40"], ids=["blocks", "inodes"])
def test_a_real_small_disk(tmp_path, options):
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        test_a_real_limit_of_file_size(LocalStore(tmp_path))
        return
    command = [*namespace, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
