"""The printed Job as its controller runs it: pods are processes, some killed, evicted, out of memory; S3 is moto.

The compiler is a fake (tests.support.fake_worker); the build, its leases, its pushes and the rules of the printed
object are real.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.build import exit_code
from graphcache.costs import Costs
from graphcache.jobs.kubernetes import objects
from graphcache.jobs.request import JobRequest
from graphcache.jobs.shard import parse_shard, select
from graphcache.remote.files import open_files
from graphcache.remote.pull import pull_all
from graphcache.remote.tier import Tier
from graphcache.remote.tiered import TieredStore
from graphcache.remote.url import parse
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.store.processes import finish, start
from tests.support.fake_build import FakeMachine
from tests.support.fake_graphs import fake_graph
from tests.support.servers import make_bucket, s3_server, use_s3

SHARDS = 3
GRAPHS = [fake_graph(f"g{i}", elements=i + 1, secs=0.3) for i in range(9)]
REFUSED = fake_graph("refused", elements=99, error="Not importable: aten::mystery")


@dataclass
class Index:
    """What the controller knows of one index of the Job."""

    failures: int = 0
    state: str = "running"
    exits: list[int] = field(default_factory=list)


class Controller:
    """batch/v1's Job controller, as far as the printed object uses it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.indexes = {index: Index() for index in range(spec["completions"])}

    def ended(self, index: int, code: int, *, evicted: bool) -> None:
        """A pod ended: done, tried again, or failed, by podFailurePolicy's first rule that matches."""
        known = self.indexes[index]
        known.exits.append(code)
        if code == 0:
            known.state = "done"
            return
        for rule in self.spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {}).get("values", [])
            conditions = [each["type"] for each in rule.get("onPodConditions", [])]
            if code in codes or (evicted and "DisruptionTarget" in conditions):
                if rule["action"] == "FailIndex":
                    known.state = "failed"
                assert rule["action"] in ("FailIndex", "Ignore")
                return
        known.failures += 1
        if known.failures > self.spec["backoffLimitPerIndex"]:
            known.state = "failed"


def test_pods_that_are_killed_evicted_and_out_of_memory_fill_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = JobRequest(
        name="g",
        image="i",
        build=["graphcache", "build"],
        graphs=10,
        shards=SHARDS,
        remote="s3://x/y",
        volume=None,
        peak_bytes=None,
        deadline_secs=3600,
    )
    spec = objects(request, secret=None, namespace=None, train=[], cards=1)[1]["spec"]
    controller = Controller(spec)
    machine = FakeMachine(tmp_path, monkeypatch)
    with s3_server() as port:
        use_s3(monkeypatch, port)
        monkeypatch.setenv("GRAPHCACHE_LEASE_SECS", "3")
        monkeypatch.setenv("GRAPHCACHE_REMOTE_TIMEOUT", "60")
        url = make_bucket(port, "job-bucket")

        def pod(index: int, attempt: int) -> None:
            """A new pod has an empty cache of its own; the file says how it ended, as a container's status does."""
            os.environ["JOB_COMPLETION_INDEX"] = str(index)
            shard = parse_shard(f"auto/{SHARDS}")
            store = TieredStore(tmp_path / f"pod-{index}-{attempt}", [parse(url)], push=True)
            report = machine.build(select([*GRAPHS, REFUSED], shard, Costs()), store=store, jobs=1)
            store.push_built([o.entry for o in report.outcomes if o.entry], [])
            os._exit(exit_code(report))

        # One pod of each index is ended early: evicted, out of memory, killed by hand.
        ends = {0: (signal.SIGTERM, True), 1: (signal.SIGKILL, False), 2: (signal.SIGKILL, True)}
        first = {index: start(lambda index=index: pod(index, 0)) for index in range(SHARDS)}
        while len(machine.compiled) < SHARDS:
            time.sleep(0.02)
        for index, child in first.items():
            how, evicted = ends[index]
            os.kill(child, how)
            controller.ended(index, finish_code(child), evicted=evicted)
        at_kill = list(machine.compiled)
        for attempt in range(1, 6):
            todo = [index for index, known in controller.indexes.items() if known.state == "running"]
            pods = {index: start(lambda index=index, attempt=attempt: pod(index, attempt)) for index in todo}
            for index, child in pods.items():
                controller.ended(index, finish(child), evicted=False)
        assert sorted(known.state for known in controller.indexes.values()) == ["done", "done", "failed"]
        (failed,) = [known for known in controller.indexes.values() if known.state == "failed"]
        assert failed.exits.count(4) == 1, "given up at once, by its own exit code"
        assert failed.exits[-1] == 4
        everything = LocalStore(tmp_path / "everything")
        tier = Tier(open_files(parse(url)))
        assert tier.files.run(pull_all(tier, everything)).bad == ()
    assert {entry.graph.name for entry in everything.entries()} == {graph.name for graph in GRAPHS}
    assert verify(everything).sound
    # Each graph once, but for those that a killed pod was at.
    counts = {graph.name: machine.compiled.count(graph.name) for graph in GRAPHS}
    again = {name for name, count in counts.items() if count > 1}
    assert all(count <= 2 for count in counts.values())
    assert again <= set(at_kill)
    assert len(again) <= SHARDS


def finish_code(child: int) -> int:
    """128 and the signal's number, as a container's status has it."""
    code = finish(child)
    return 128 - code if code < 0 else code
