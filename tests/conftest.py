"""torch comes without the vendor's device here, as it does in the trainer, whatever tests run in whatever order.

`torch.manual_seed` seeds every device that is there, and the vendor's then fixes its fusion at 1 PE: an emulated card,
which wants 8, could not be made after it. Child processes keep the environment that they would have had.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from hypothesis import settings

from graphcache.vendor.layouts import AUTOLOAD_VARIABLE

with pytest.MonkeyPatch.context() as environment:
    environment.setenv(AUTOLOAD_VARIABLE, "0")
    import torch  # noqa: F401

# A busy machine is no failure.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def no_cache_of_this_user(tmp_path_factory, monkeypatch):
    """What a test remembers of a cache that is not there yet stays off the machine, whose settings it does not read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "xdg-config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))


@pytest.fixture(scope="session")
def compiled_cache(tmp_path_factory) -> Path:
    """A cache that all tests of a session build into, also those of other processes: each graph is compiled once.

    For tests that need artifacts. Tests of the build itself have empty caches of their own.
    """
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"


@pytest.fixture
def no_home(monkeypatch):
    """A process without a home, as in a container that runs as a user without a line in passwd."""

    def absent(user):
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.setattr(pwd, "getpwuid", absent)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
