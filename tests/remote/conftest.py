from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from graphcache.remote.files import open_files
from graphcache.remote.tier import Tier
from graphcache.remote.url import parse
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from tests.store.fakes import fake_artifact, fake_facts, fake_key
from tests.support.servers import make_bucket, s3_server, use_s3

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def s3_url(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a bucket of its own."""
    use_s3(monkeypatch, s3_port)
    monkeypatch.setenv("GRAPHCACHE_REMOTE_TIMEOUT", "20")
    return make_bucket(s3_port, f"bucket-{next(_numbers)}")


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty remote of each kind that can be written."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    if request.param == "memory":
        return f"memory://remote-{next(_numbers)}"
    return str(tmp_path / "remote")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "here")


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "elsewhere")


@pytest.fixture
def tier_of() -> Callable[[str], Tier]:
    """Opens a remote once a test: a client of S3 takes a third of a second to make."""
    return cache(lambda url: Tier(open_files(parse(url))))


def fill(store: LocalStore, *numbers: int, salt: str = "") -> list[Entry]:
    """Commits a made-up artifact for each number."""
    return [store.commit(fake_key(n), fake_artifact(fake_key(n), salt=salt), fake_facts(f"fake[{n}]")) for n in numbers]
