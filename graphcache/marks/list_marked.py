"""The graphs of a module's marked functions, asked of a process of its own: their module imports torch.

python -m graphcache.marks.list_marked MODULE {"t": 64}        [{...}, ...] or {"error": {...}}, one line of JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from graphcache.errors import GraphcacheError, UsageError
from graphcache.graph import Graph
from graphcache.process.helper import helper_command, helper_environment


def list_marked(module: str, dims: Mapping[str, int]) -> list[Graph]:
    """As `graphcache.marks.marked.marked_graphs`, without importing the module here. Raises UsageError."""
    done = subprocess.run(
        [*helper_command("graphcache.marks.list_marked"), module, json.dumps(dict(dims))],
        env=helper_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"{module} cannot be asked for its graphs: {last}")
    value = json.loads(lines[-1])
    if isinstance(value, dict):
        raise UsageError(value["error"]["message"], hint=value["error"]["hint"])
    return [Graph.from_json(each) for each in value]


def main(argv: Sequence[str]) -> int:
    from graphcache.marks.marked import marked_graphs

    # What the module prints while it is imported must not come before the answer.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer: object
    try:
        answer = [graph.as_json() for graph in marked_graphs(argv[0], json.loads(argv[1]))]
    except GraphcacheError as error:
        answer = {"error": error.as_json()}
    print(json.dumps(answer), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
