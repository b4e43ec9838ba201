"""Which graphs a run calls, written down: the plan of the next build.

    with record("shapes.json"):
        train()

Marked functions run as torch runs them meanwhile, so nothing has to be in the cache. The file is JSON: a format's name,
and each graph once, sorted by name; another run into the same file adds to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from graphcache.errors import CorruptError, UsageError
from graphcache.graph import Graph
from graphcache.store.base import checked_graph
from graphcache.store.files import write_file
from graphcache.store.reading import read_file

FORMAT = "graphcache-shapes-1"
LIMIT_BYTES = 64 * 1024 * 1024

_calls: dict[str, Graph] | None = None


def is_recording() -> bool:
    return _calls is not None


def add_call(graph: Graph) -> None:
    """Notes a graph of the run that is recorded."""
    assert _calls is not None
    _calls[graph.name] = graph


@contextmanager
def record(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writes the graphs that marked functions are called for to `path` when the block ends, however it ends.

    Raises UsageError inside another `record`, and before anything runs for a file that is none of these; StoreError
    when it cannot be written.
    """
    global _calls
    if _calls is not None:
        raise UsageError("a run is recorded already", hint="leave one graphcache.record before another begins")
    before = read_shapes(path) if os.path.lexists(path) else []
    _calls = {graph.name: graph for graph in before}
    try:
        yield
    finally:
        found, _calls = _calls, None
        write_shapes(path, found.values())


def write_shapes(path: str | os.PathLike[str], graphs: Iterable[Graph]) -> None:
    """Whole or not at all."""
    listed = sorted(graphs, key=lambda graph: graph.name)
    text = json.dumps({"format": FORMAT, "graphs": [graph.as_json() for graph in listed]}, indent=1)
    write_file(Path(path).absolute(), (text + "\n").encode("ascii"), replace=True)


def read_shapes(path: str | os.PathLike[str]) -> list[Graph]:
    """The graphs in a file of `record`. Raises UsageError for one that is none."""
    try:
        value = json.loads(read_file(Path(path), limit_bytes=LIMIT_BYTES))
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']!r}, this program reads {FORMAT!r}")
        return [checked_graph(each) for each in value["graphs"]]
    except OSError as error:
        raise UsageError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CorruptError) as error:
        raise UsageError(
            f"{os.fspath(path)} holds no recorded shapes: {error}", hint="graphcache.record(FILE) writes one"
        ) from error
