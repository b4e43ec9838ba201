"""The `graphcache` command as a container runs it, with a made-up compiler: all of it is real but torch and the vendor.

    python -m tests.support.pod build ...

FAKE_COMPILES is the file of `tests.support.fake_worker`; with FAKE_NO_LOCKS file locks say yes to everybody, as on some
network file systems.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli import build as command
from cli.main import run
from graphcache.build import build as build_module
from graphcache.graph import Listing
from tests.support.fake_build import fake_toolchain
from tests.support.fake_graphs import fake_graph
from tests.support.fake_worker import REVISION, with_variables

GRAPHS = [fake_graph(f"g{i}", elements=i + 1, secs=0.5) for i in range(9)]
REFUSED = fake_graph("refused", elements=99, secs=0.5, error="Not importable: aten::mystery")
CATALOG, WHOLE = "pods", "pods-whole"


def catalog(table: Any, config: Any, options: Any) -> Listing:
    return Listing((*GRAPHS, REFUSED), ())


def whole(table: Any, config: Any, options: Any) -> Listing:
    """Without the graph that is refused."""
    return Listing(tuple(GRAPHS), ())


def install(folder: Path) -> str:
    """Makes the catalog known to Pythons that have `folder` in their PYTHONPATH; returns it."""
    info = folder / "pods-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pods\nVersion: 1.0\n")
    targets = f"{CATALOG} = tests.support.pod:catalog\n{WHOLE} = tests.support.pod:whole\n"
    (info / "entry_points.txt").write_text(f"[graphcache.catalogs]\n{targets}")
    return str(folder)


@contextmanager
def made_up() -> Iterator[None]:
    """Commands of this process have the made-up compiler."""
    options_of = command._build_options
    worker = with_variables(FAKE_COMPILES=os.environ["FAKE_COMPILES"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_build_options", lambda options: replace(options_of(options), worker=worker))
        patch.setattr(build_module, "build_parts", fake_toolchain)
        patch.setattr(build_module, "known_revision", lambda memo: REVISION)
        patch.setattr(build_module, "remember_revision", lambda memo, revision: None)
        if os.environ.get("FAKE_NO_LOCKS"):
            patch.setattr(fcntl, "flock", lambda handle, how: None)
        yield


if __name__ == "__main__":
    with made_up():
        code = run(sys.argv[1:])
    sys.exit(code)
