"""The printed Job as its controller runs it: pods are processes, some killed, evicted, out of memory; S3 is moto.

The compiler is a fake (tests.support.pod); the command line, the build, its leases, its pushes and the rules of the
printed object are real.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphcache.remote.files import open_files
from graphcache.remote.pull import pull_all
from graphcache.remote.tier import Tier
from graphcache.remote.url import parse
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify
from tests.support.command_lines import children, command_lines_below
from tests.support.pod import CATALOG, GRAPHS, install
from tests.support.servers import make_bucket, s3_environment, s3_server, use_s3

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "cache_manifests" / "smollm2-135m-adamw.json")
COMMAND = (sys.executable, "-m", "tests.support.pod")
SHARDS = 3
NAMES = {graph.name for graph in GRAPHS}


@dataclass
class Index:
    """What the controller knows of one index of the Job."""

    failures: int = 0
    state: str = "running"
    exits: list[int] = field(default_factory=list)
    printed: str = ""


class Controller:
    """batch/v1's Job controller, as far as the printed object uses it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.indexes = {index: Index() for index in range(spec["completions"])}

    @property
    def running(self) -> list[int]:
        return [index for index, known in self.indexes.items() if known.state == "running"]

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


class Cluster:
    """Pods of the printed Job: each has an empty cache of its own, and the secret in its environment."""

    def __init__(self, folder: Path, secret: dict[str, str]) -> None:
        self.folder, self.secret = folder, secret
        self._places = f"{install(folder / 'installed')}:{ROOT}"
        self._pods = 0

    @property
    def environment(self) -> dict[str, str]:
        """What is there without a Job."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
        return {**kept, "PYTHONPATH": self._places, "FAKE_COMPILES": str(self.folder / "no-pod.compiles")}

    @property
    def compiled(self) -> list[str]:
        """Names of the graphs whose compile was started."""
        return [name for path in sorted(self.folder.glob("*.compiles")) for name in path.read_text().split()]

    def started(self, name: str) -> str:
        """The graph whose compile a pod or host has started last; waits for the first."""
        path, until = self.folder / f"{name}.compiles", time.monotonic() + 60
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < until
            time.sleep(0.01)
        return path.read_text().split()[-1]

    def start(self, container: dict[str, Any], index: int) -> subprocess.Popen[str]:
        name = f"pod-{self._pods}"
        self._pods += 1
        own = {"GRAPHCACHE_DIR": str(self.folder / name), "JOB_COMPLETION_INDEX": str(index)}
        own["FAKE_COMPILES"] = str(self.folder / f"{name}.compiles")
        given = {each["name"]: each["value"] for each in container["env"]}
        program, *words = container["command"]
        assert program == "graphcache"
        return subprocess.Popen(
            [*COMMAND, *words],
            env={**self.environment, **given, **self.secret, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    with s3_server() as port:
        use_s3(monkeypatch, port)
        yield make_bucket(port, "job-bucket"), port


def printed_job(cluster: Cluster, url: str) -> dict[str, Any]:
    """The Indexed Job, as `graphcache job` prints it."""
    words = ["job", "kubernetes", "--shapes-from", MODEL, "--only", CATALOG, "--image", "registry.example/graphcache:1"]
    place = ["--remote", url, "--secret", "s3-credentials", "--shards", str(SHARDS)]
    done = subprocess.run(
        [*COMMAND, *words, *place], env=cluster.environment, capture_output=True, text=True, timeout=60, check=True
    )
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    (job,) = [each for each in found if each["spec"].get("completionMode") == "Indexed"]
    return dict(job["spec"])


@pytest.mark.stress
def test_pods_that_are_killed_evicted_and_out_of_memory_fill_the_cache(tmp_path: Path, bucket: tuple[str, int]) -> None:
    url, port = bucket
    more = {"GRAPHCACHE_LEASE_SECS": "3", "GRAPHCACHE_REMOTE_TIMEOUT": "60"}
    cluster = Cluster(tmp_path, {**s3_environment(port), **more})
    spec = printed_job(cluster, url)
    (container,) = spec["template"]["spec"]["containers"]
    controller = Controller(spec)

    # One pod of each index is ended early: evicted; out of memory as a whole; its largest process out of memory.
    ends = [
        lambda pod: pod.terminate(),
        lambda pod: os.killpg(pod.pid, signal.SIGKILL),
        lambda pod: [os.kill(worker, signal.SIGKILL) for worker in children(pod.pid)],
    ]
    pods = {index: cluster.start(container, index) for index in range(SHARDS)}
    at_kill, lines = set(), set()
    for index, pod in pods.items():
        at_kill.add(cluster.started(f"pod-{index}"))
        lines |= command_lines_below(pod.pid)
        ends[index](pod)
        at_kill.add(cluster.started(f"pod-{index}"))
    finish(controller, pods, evicted={0})
    assert [known.exits for known in controller.indexes.values()] == [[143], [137], [1]]
    # A pod that is tried again goes on where the first one was; the engine's pods are new, with new caches.
    while controller.running:
        pods = {index: cluster.start(container, index) for index in controller.running}
        finish(controller, pods, evicted=set())

    assert sorted(known.state for known in controller.indexes.values()) == ["done", "done", "failed"]
    (failed,) = [known for known in controller.indexes.values() if known.state == "failed"]
    assert failed.exits.count(4) == 1, "given up at once, by its own exit code"
    assert failed.exits[-1] == 4
    everything = LocalStore(tmp_path / "everything")
    tier = Tier(open_files(parse(url)))
    assert tier.files.run(pull_all(tier, everything)).bad == ()
    assert {entry.graph.name for entry in everything.entries()} == NAMES
    assert verify(everything).sound
    # Each graph once, but for those that a pod was at when it was ended.
    counts = {name: cluster.compiled.count(name) for name in NAMES}
    again = {name for name, count in counts.items() if count > 1}
    assert all(count <= 2 for count in counts.values()), counts
    assert again <= at_kill
    assert len(again) <= SHARDS
    check_summaries(controller)
    assert any(b"tests.support.fake_worker" in line for line in lines)
    assert not [line for line in lines if s3_environment(port)["AWS_SECRET_ACCESS_KEY"].encode() in line]


def finish(controller: Controller, pods: dict[int, subprocess.Popen[str]], *, evicted: set[int]) -> None:
    """Until all have ended. The status of a container that a signal ended is 128 and the signal's number."""
    for index, pod in pods.items():
        controller.indexes[index].printed = pod.communicate(timeout=120)[0]
        code = pod.returncode
        controller.ended(index, 128 - code if code < 0 else code, evicted=index in evicted)


def check_summaries(controller: Controller) -> None:
    """What the last pod of each index says of its shard: together every graph, and the one that is refused."""
    ready = failed = 0
    for known in controller.indexes.values():
        facts = dict(re.findall(r"^(\w+) +(.+)$", known.printed, re.MULTILINE))
        there, of = re.fullmatch(r"(\d+) of (\d+)", facts["ready"]).groups()  # type: ignore[union-attr]
        assert int(of) == int(there) + int(facts["failed"].split()[0]), known.printed
        ready, failed = ready + int(there), failed + int(facts["failed"].split()[0])
    assert (ready, failed) == (len(GRAPHS), 1)


# --- two hosts --------------------------------------------------------------------------------------------------------


SAY_WHO = 'hostname "$0"; echo "process $$ of $(hostname)"; exec "$@"'


def host(cluster: Cluster, name: str, cache: Path) -> subprocess.Popen[str]:
    """A build as process 1 of a host of its own, on a folder that hosts share, where locks say yes to everybody."""
    build = [*COMMAND, "build", "--shapes-from", MODEL, "--only", CATALOG, "--jobs", "1", "--cache", str(cache)]
    more = {"GRAPHCACHE_SHARED": "1", "GRAPHCACHE_LEASE_SECS": "3", "FAKE_NO_LOCKS": "1", "HOME": str(cluster.folder)}
    more["FAKE_COMPILES"] = str(cluster.folder / f"{name}.compiles")
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", SAY_WHO]
    return subprocess.Popen(
        [*alone, name, *build],
        env={**cluster.environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.stress
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's to make")
def test_two_hosts_with_one_process_id_share_a_folder(tmp_path: Path) -> None:
    """The first is killed in the middle of a compile; the second finishes alone, in bounded time."""
    cluster, cache = Cluster(tmp_path, {}), tmp_path / "shared"
    first = host(cluster, "one", cache)
    cluster.started("one")
    second = host(cluster, "two", cache)
    cluster.started("two")
    before = cluster.compiled
    assert len(set(before)) == len(before), "each takes what the other has not"
    first.kill()
    printed = [first.communicate(timeout=60)[0], second.communicate(timeout=120)[0]]
    assert [text.splitlines()[0] for text in printed] == ["process 1 of one", "process 1 of two"]
    assert second.returncode == 4, printed[1]
    assert "ready      9 of 10" in printed[1]
    store = LocalStore(cache)
    assert {entry.graph.name for entry in store.entries()} == NAMES
    assert verify(store).sound
    again = [name for name in NAMES if cluster.compiled.count(name) > 1]
    assert len(again) <= 1, "what the first was at"
