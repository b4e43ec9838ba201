"""One function says where the cache lies, for builder and trainer alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcache import location
from graphcache.errors import StoreError
from graphcache.local.memo import memo_of
from graphcache.location import cache_dir, local_dir
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_artifact, fake_facts, fake_key


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("GRAPHCACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def test_option_before_variable_before_xdg_before_home(monkeypatch):
    assert cache_dir() == Path("/home/someone/.cache/graphcache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/graphcache")
    monkeypatch.setenv("GRAPHCACHE_DIR", "/shared/cache")
    assert cache_dir() == Path("/shared/cache")
    assert cache_dir("/option") == cache_dir(Path("/option")) == Path("/option")


def test_empty_is_not_given(monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir("") == Path("/home/someone/.cache/graphcache")


def test_a_relative_xdg_folder_is_ignored_as_the_specification_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/home/someone/.cache/graphcache")


def test_a_relative_option_is_made_absolute_and_a_tilde_is_expanded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cache_dir("cache") == tmp_path / "cache"
    assert cache_dir("~/cache") == Path("/home/someone/cache")


@pytest.mark.parametrize("home", ["~", "relative/home"], ids=["none", "relative"])
def test_a_home_that_is_no_whole_path_is_a_named_error(monkeypatch, home):
    """Builder and trainer would look for a relative one in different folders."""
    monkeypatch.setattr(location.os.path, "expanduser", lambda path: path.replace("~", home))
    with pytest.raises(StoreError, match="HOME") as caught:
        cache_dir()
    assert "GRAPHCACHE_DIR" in caught.value.hint
    with pytest.raises(StoreError, match="whose home"):
        cache_dir("~/cache")


def test_without_a_home_nothing_is_remembered_where_the_cache_cannot_keep_it(no_home, tmp_path):
    assert local_dir(tmp_path) is None
    with memo_of(tmp_path) as memo:
        memo.set("a", 1)
        assert memo.get("a") is None
        assert "neither XDG_CACHE_HOME nor HOME" in memo.trouble
    assert local_dir(tmp_path, building=True) == tmp_path / "local"


def test_a_user_that_there_is_not_is_a_named_error():
    with pytest.raises(StoreError, match="whose home '~no-such-user/cache' means"):
        cache_dir("~no-such-user/cache")


def test_what_can_be_thrown_away_lies_in_a_local_writable_cache(tmp_path):
    assert local_dir(tmp_path / "not" / "yet", building=True) == tmp_path / "not" / "yet" / "local"


def test_it_lies_elsewhere_for_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(location.os, "access", lambda path, mode: False)
    one, other = (local_dir(tmp_path / name, building=True) for name in ("one", "other"))
    assert one.parent == Path("/home/someone/.cache/graphcache/local")
    assert one != other


@pytest.mark.parametrize(("kind", "local"), [("nfs4", False), ("fuse.sshfs", False), ("ext4", True), ("overlay", True)])
def test_it_lies_elsewhere_for_a_cache_on_a_network(monkeypatch, tmp_path, kind, local):
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw shared:1 - {kind} server:/export rw\n"
    monkeypatch.setattr(Path, "read_bytes", lambda self: mounts.encode())
    assert (local_dir(tmp_path / "cache", building=True) == tmp_path / "cache" / "local") is local


def test_a_network_mount_may_have_a_space_in_its_path(monkeypatch, tmp_path):
    """Which the kernel shows as \\040."""
    share = tmp_path / "my share"
    share.mkdir()
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path}/my\\040share rw - nfs4 server:/export rw\n"
    monkeypatch.setattr(Path, "read_bytes", lambda self: mounts.encode())
    assert local_dir(share / "cache", building=True) != share / "cache" / "local"


def test_a_folder_that_is_no_store_is_left_as_it_is(tmp_path):
    """A wrong --cache of a command that only looks makes nothing there."""
    (tmp_path / "objects" / "ab").mkdir(parents=True)
    (tmp_path / "objects" / "ab" / "weights.safetensors").write_bytes(b"theirs")
    assert local_dir(tmp_path) != tmp_path / "local"
    key = fake_key()
    LocalStore(tmp_path).commit(key, fake_artifact(key), fake_facts())
    assert local_dir(tmp_path) == tmp_path / "local"


@pytest.mark.parametrize(
    "odd", ["'/data/cache'", '"/data/cache"', "/data/cache ", " /data/cache", "/data/cache\n", '"/x']
)
def test_quotes_and_blanks_at_the_ends_are_refused(monkeypatch, odd):
    monkeypatch.setenv("GRAPHCACHE_DIR", odd)
    with pytest.raises(StoreError, match="GRAPHCACHE_DIR is ") as caught:
        cache_dir()
    assert repr(odd) in caught.value.message
    with pytest.raises(StoreError, match="quote or blank"):
        cache_dir(odd)


def test_quotes_and_blanks_inside_are_part_of_a_name(monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", "/data/my 'old' cache")
    assert cache_dir() == Path("/data/my 'old' cache")
