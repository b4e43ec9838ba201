"""A graph that the compiler cannot take is reported by graph, operator and source line, and the others go on."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.compiler.vendor import INSTALLED, OLDER, vendor
from tests.support import programs

pytestmark = pytest.mark.compiler

BUILD = """
import json, sys
from pathlib import Path
from graphcache.build.build import BuildOptions, build
from graphcache.local.memo import memo_of
from graphcache.store.programs import Programs
from graphcache.store.local import LocalStore
from tests.support.programs import graph_of

store = LocalStore(Path(sys.argv[1]))
graphs = [graph_of(name, shape=(8, 8)) for name in ("log_of_sum", "scaled_sum", "returns_what_it_was_given")]
with memo_of(store.root) as memo:
    report = build(graphs, store, memo, programs=Programs(store.root), options=BuildOptions(jobs=1))
print(json.dumps({
    "states": {o.graph.name: o.state for o in report.outcomes},
    "causes": {o.graph.name: o.trouble.cause for o in report.failed},
    "records": {f.graph: [f.cause, f.retryable] for f in store.failures()},
}))
"""


def line(function: str, text: str) -> str:
    lines, start = inspect.getsourcelines(getattr(programs, function))
    (offset,) = (i for i, each in enumerate(lines) if text in each)
    return f"tests/support/programs.py:{start + offset} in {function}"


@pytest.mark.parametrize(("release", "step"), [(INSTALLED, "compile"), (OLDER, "lower dfg the graph")])
def test_what_is_refused_is_named_down_to_the_line(release: str, step: str, tmp_path: Path) -> None:
    found = vendor(release, tmp_path).python(BUILD, str(tmp_path / "cache"))
    assert found["states"]["log_of_sum"] == "failed"
    assert found["states"]["scaled_sum"] == "compiled", "the others go on"
    refused = found["causes"]["log_of_sum"]
    assert refused.splitlines()[0] == (
        f"aten.logsumexp.default at {line('log_of_sum', 'logsumexp')}: "
        f"failed to {step}: failed to import dfg: Not importable for all cases, logsumexp"
    )
    assert found["records"]["log_of_sum"] == [refused, False]
    if release == INSTALLED:
        dropped = found["causes"]["returns_what_it_was_given"]
        assert dropped.startswith("the compiler gives 1 of 4 results: result 1 is a view of an argument (")
        assert line("returns_what_it_was_given", "y.reshape") in dropped
