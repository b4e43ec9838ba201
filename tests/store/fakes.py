"""Artifacts of made-up bytes, for testing the store: nothing can run them."""

from __future__ import annotations

import hashlib

from graphcache.artifact import encode
from graphcache.graph import Graph, TensorSpec
from graphcache.key import Key
from graphcache.proof.verdict import Deviation, State, Verdict
from graphcache.store.base import Cost, Entry, Facts, Failure

TOOLCHAIN = {"furiosa-torch": "2026.4.0", "compiler-revision": "fc43f6a779", "torch": "2.10.0", "cross-gcc": "12.2.0"}


def fake_key(number: int = 0, *, settings: dict[str, str] | None = None, **toolchain: str) -> Key:
    """The key of a made-up program; `number` chooses the program, the rest replaces toolchain parts."""
    changed = {name.replace("_", "-"): value for name, value in toolchain.items()}
    return Key.of(hashlib.sha256(b"%d" % number).hexdigest(), {**TOOLCHAIN, **changed}, settings)


def fake_artifact(key: Key, *, salt: str = "", runnable_bytes: int = 64, dfg_bytes: int = 32) -> bytes:
    """Artifact bytes for `key`; another `salt` gives other bytes, as a compiler might that is not deterministic."""
    seed = hashlib.sha256((key.digest + salt).encode())
    runnable, dfg = _bytes(seed.digest(), runnable_bytes), _bytes(seed.digest()[::-1], dfg_bytes)
    args = (TensorSpec("master", "float32", (8,)), TensorSpec("grad", "bfloat16", (8,)))
    return encode(runnable, dfg, args=args, outputs=args[:1], key=key)


def fake_facts(name: str = "fake[8]", *, catalog: str = "adamw", wall_secs: float = 2.5) -> Facts:
    graph = Graph(name, catalog, "tests.store.fakes:nothing", (TensorSpec("master", "float32", (8,)),))
    return Facts(graph, Cost(wall_secs, wall_secs, 1 << 30), estimate_ns=1000)


def _bytes(seed: bytes, count: int) -> bytes:
    return (seed * (count // len(seed) + 1))[:count]


def fake_failure(
    key: Key, *, graph: str = "fake", cause: str = "x", log: str = "logs/x", retryable: bool = False
) -> Failure:
    """A failed compile of `key`."""
    created = "2026-11-29T12:00:00Z"
    return Failure(key=key, graph=graph, cause=cause, log=log, retryable=retryable, created=created)


def fake_verdict(entry: Entry, state: State = "proven") -> Verdict:
    """A verdict that nobody reached, on the artifact of `entry`."""
    return Verdict(
        key=entry.key,
        artifact=entry.artifact_digest,
        graph=entry.graph.name,
        state=state,
        reason="" if state == "proven" else "result 1: twice the bound",
        ran="host executor",
        method="running-error-1",
        releases={"torch": "2.10.0"},
        seed=0,
        sets=2,
        results=(Deviation("float32", 0.5, 1e-7, 2e-7),),
        secs=1.5,
        created="2026-12-01T00:00:00Z",
    )
