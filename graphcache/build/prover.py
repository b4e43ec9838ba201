"""The proof of one entry, in a worker: its function must still export to the entry's program."""

from __future__ import annotations

import time
from dataclasses import replace

from graphcache.errors import GraphcacheError
from graphcache.export.program import export
from graphcache.key import SETTING
from graphcache.proof.check import METHOD, SEED, Found, prove, work
from graphcache.proof.verdict import Verdict
from graphcache.runtime.furiosa import HostExecutionError, HostExecutor
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore

# Of the key: what computed the results, and what says what the function means.
RELEASES = ("furiosa-torch", "compiler-revision", "torch", "fusion")
RAN = "host executor"


class OtherProgramError(GraphcacheError):
    """The function that an entry names means something else by now."""

    name = "other-program"


def verdict_on(store: LocalStore, entry: Entry, exported: str | None = None) -> Verdict:
    """Runs the artifact of `entry` in this process, whose fusion must be the entry's.

    exported: the program that the entry's graph exports to, from somebody who has just exported it

    Raises OtherProgramError, CorruptError, FusionError, and what the export raises.
    """
    started = time.monotonic()
    graph, artifact = entry.graph, store.open(entry)
    program = exported or export(graph).program
    if program != entry.program:
        raise OtherProgramError(
            f"{graph.name}: {graph.function} exports to the program {program[:12]} now, and the artifact is of "
            f"{entry.program[:12]}",
            hint="graphcache build compiles what it is now",
        )
    # What it was compiled with, which a graph may leave to what is recommended for its program.
    settings = {n.removeprefix(SETTING): value for n, value in entry.key.parts.items() if n.startswith(SETTING)}
    graph = replace(graph, settings=settings)
    executor, sets = HostExecutor.of(artifact), work(graph).sets
    try:
        found = prove(graph, executor.execute, sets)
    except HostExecutionError as error:
        found = Found("unproven", error.message, (), 0)
    return Verdict(
        key=entry.key,
        artifact=entry.artifact_digest,
        graph=graph.name,
        state=found.state,
        reason=found.reason,
        ran=RAN,
        method=METHOD,
        releases={name: entry.key.parts[name] for name in RELEASES if name in entry.key.parts},
        seed=SEED,
        sets=found.sets,
        results=found.results,
        secs=round(time.monotonic() - started, 3),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
