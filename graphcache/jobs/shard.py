"""One build as several jobs: which graphs each of them has. Every job works it out alone, and all agree."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from graphcache.costs import Costs
from graphcache.errors import UsageError
from graphcache.graph import Graph

# Where the engine says which of the jobs this is, and from which number on it counts.
KUBERNETES, SLURM, SLURM_FIRST = "JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN"
AUTO = "auto"


@dataclass(frozen=True)
class Shard:
    """The part `index`, from 0, of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """`2/8`, or `auto/8` for the number that the engine gives this job. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6}|auto)/(\d{1,6})", text, re.ASCII)
    if found is None:
        raise UsageError(f"{text!r} is no shard", hint="0/8 is the first of eight; auto/8 takes the job's own number")
    count = int(found[2])
    index = _own_index() if found[1] == AUTO else int(found[1])
    if not 0 <= index < count:
        raise UsageError(f"there is no shard {index} of {count}", hint=f"they are 0/{count} to {count - 1}/{count}")
    return Shard(index, count)


def select(graphs: Sequence[Graph], shard: Shard, costs: Costs) -> list[Graph]:
    """The graphs of one shard, in the order given. Together the shards have each graph once.

    The longest first, each to the shard that has least (R. L. Graham, Bounds on multiprocessing timing anomalies).
    costs: have to be the same for all jobs, so those of manifests and not those of a job's own cache
    """
    secs = {graph.name: _secs(graph, costs) for graph in graphs}
    loads = [0.0] * shard.count
    counts = [0] * shard.count
    owner: dict[str, int] = {}
    for graph in sorted(graphs, key=lambda g: (-secs[g.name], g.name)):
        least = min(range(shard.count), key=lambda i: (loads[i], counts[i], i))
        owner[graph.name] = least
        loads[least] += secs[graph.name]
        counts[least] += 1
    return [graph for graph in graphs if owner[graph.name] == shard.index]


def _secs(graph: Graph, costs: Costs) -> float:
    """What a compile takes; without any record, as a build guesses it for its order."""
    expected = costs.expect(graph)
    return expected.secs if expected else sum(spec.elements for spec in graph.args) / 1e7


def _own_index() -> int:
    named = {name: os.environ[name] for name in (KUBERNETES, SLURM) if os.environ.get(name)}
    if len(named) != 1:
        what = " and ".join(named) if named else f"neither {KUBERNETES} nor {SLURM}"
        raise UsageError(
            f"the environment has {what}, so which shard this is cannot be told",
            hint="give its number, such as --shard 0/8",
        )
    ((name, text),) = named.items()
    first = os.environ.get(SLURM_FIRST, "0") if name == SLURM else "0"
    if not (text.isascii() and text.isdigit() and first.isascii() and first.isdigit()):
        raise UsageError(f"{name} is {text!r}, not a number")
    return int(text) - int(first)
