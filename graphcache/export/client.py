"""Programs of graphs, by `python -m graphcache.export.program` in a process of its own: torch stays out of this one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from graphcache.errors import GraphcacheError
from graphcache.graph import Graph
from graphcache.process.helper import helper_command, helper_environment, last_words
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.programs import Answer


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


def export_programs(graphs: Sequence[Graph]) -> list[Answer | GraphcacheError]:
    """The program of each graph and its settings, or why there is none. About two seconds, nearly all torch's import;
    again after each graph that changed torch's state, since what is exported after it would be another program.

    A program of another source than this process hashes is none: the source was edited meanwhile.
    """
    hashes = SourceHashes(WorkTree())
    sources = [hashes.of(graph.function).digest for graph in graphs]
    answers: list[Answer | GraphcacheError] = []
    ending, more = "", True
    while more and len(answers) < len(graphs):
        lines, ending = _ask(graphs[len(answers) :])
        answers += [_answer(line, source) for line, source in zip(lines, sources[len(answers) :], strict=False)]
        more = bool(lines) and json.loads(lines[-1]).get("last", False)
    missing = len(graphs) - len(answers)
    return [*answers, *(ExportingError(f"its export ended: {ending}", hint="run graphcache doctor"),) * missing]


def _ask(graphs: Sequence[Graph]) -> tuple[list[str], str]:
    """A line of JSON for each graph, and how the process ended, for those that it did not get to."""
    import subprocess

    done = subprocess.run(
        helper_command("graphcache.export.program"),
        input="".join(json.dumps(graph.as_json()) + "\n" for graph in graphs),
        capture_output=True,
        text=True,
        check=False,
        env=helper_environment(),
    )
    return done.stdout.splitlines(), last_words(done)


def _answer(line: str, source: str) -> Answer | GraphcacheError:
    """What a line says; `source` is the source hash that was asked for."""
    value = json.loads(line)
    if "error" in value:
        return ExportingError(value["error"]["message"], hint=value["error"]["hint"])
    if value["source"] != source:
        return ExportingError("its source was changed while it was exported", hint="run it again")
    return Answer(str(value["program"]), value["settings"])
