"""One function says where the cache lies, for builder and trainer alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcache import location
from graphcache.errors import StoreError
from graphcache.location import cache_dir, local_dir


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


def test_no_home_is_a_named_error(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StoreError, match="HOME") as caught:
        cache_dir()
    assert "GRAPHCACHE_DIR" in caught.value.hint


def test_what_can_be_thrown_away_lies_in_a_local_writable_cache(tmp_path):
    assert local_dir(tmp_path / "not" / "yet") == tmp_path / "not" / "yet" / "local"


def test_it_lies_elsewhere_for_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(location.os, "access", lambda path, mode: False)
    one, other = local_dir(tmp_path / "one"), local_dir(tmp_path / "other")
    assert one.parent == Path("/home/someone/.cache/graphcache/local")
    assert one != other


@pytest.mark.parametrize(("kind", "local"), [("nfs4", False), ("fuse.sshfs", False), ("ext4", True), ("overlay", True)])
def test_it_lies_elsewhere_for_a_cache_on_a_network(monkeypatch, tmp_path, kind, local):
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw shared:1 - {kind} server:/export rw\n"
    monkeypatch.setattr(Path, "read_text", lambda self: mounts)
    assert (local_dir(tmp_path / "cache") == tmp_path / "cache" / "local") is local
