"""Programs of graphs, by `python -m graphcache.program` in a process of its own: torch stays out of this one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from graphcache.errors import GraphcacheError
from graphcache.graph import Graph
from graphcache.source import SourceHashes
from graphcache.source_tree import WorkTree


class ExportingError(GraphcacheError):
    """A graph whose program could not be found out."""

    name = "export"


def installed_torch() -> str | None:
    """The version of the torch that `export_programs` would run, which is not imported; None without one."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return version("torch") if find_spec("torch") else None
    except (PackageNotFoundError, ImportError, ValueError):
        return None


def export_programs(graphs: Sequence[Graph]) -> list[str | GraphcacheError]:
    """The program's digest of each graph, or why there is none. About two seconds, nearly all torch's import.

    Raises ExportingError when the source was edited meanwhile: a program must not be remembered for another source.
    """
    before = _sources(graphs)
    answers = _ask(graphs)
    if _sources(graphs) != before:
        raise ExportingError("the source was changed while it was exported", hint="run it again")
    return answers


def _sources(graphs: Sequence[Graph]) -> list[str]:
    hashes = SourceHashes(WorkTree())
    return [hashes.of(graph.function).digest for graph in graphs]


def _ask(graphs: Sequence[Graph]) -> list[str | GraphcacheError]:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "graphcache.program"],
        input="".join(json.dumps(graph.as_json()) + "\n" for graph in graphs),
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            # The same modules as this process hashed, and torch without the vendor's backend: 1.4 s less.
            "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
    )
    answers = [_answer(line) for line in done.stdout.splitlines()]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        missing = len(graphs) - len(answers)
        answers += [ExportingError(f"its export ended: {last}", hint="run graphcache doctor")] * missing
    if len(answers) != len(graphs):
        raise ExportingError(f"{len(answers)} programs for {len(graphs)} graphs", hint="report this")
    return answers


def _answer(line: str) -> str | GraphcacheError:
    value = json.loads(line)
    if "error" in value:
        return ExportingError(value["error"]["message"], hint=value["error"]["hint"])
    return str(value["program"])
