from __future__ import annotations

import pytest

from graphcache.store.local import LocalStore


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "cache")
