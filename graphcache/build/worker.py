"""A worker process: exports and compiles one graph at a time, many in its life, for `graphcache.build.pool`.

Reused, because importing torch and the vendor costs seconds; a process of its own, because a compiler can crash, hang
or eat all memory. Requests are lines of JSON on stdin; an answer is a line of JSON on what was stdout, followed by
the bytes that it announces. Everything else that is printed, by Python or by native code, goes to a log file that
the request names.

    {"op": "export", "graph": {...}, "log": PATH}   {"program": ..., "outputs": [...], "settings": {...},
                                                     "source": ..., "cost": {...}}
    {"op": "compile", "log": PATH}                  {"sizes": [R, D], "estimate_ns": ..., "cost": {...}} R+D bytes
    {"op": "prove", "store": PATH, "entry": "...", "within_secs": S, "log": PATH}   {"verdict": ...}, or
                                                    {"expected_secs": ...} for one that takes longer than S
    {"op": "work", "graphs": [...], "log": PATH}    {"work": [[products, elements], ...]}, null where it fails
    any                                             {"error": {...}, "retryable": ..., "last": ...}

After an answer that is the `last` the process ends: what it exported next could not be relied on. The first line,
unasked, is {"revision": ...}, or an error when the toolchain cannot be loaded. `compile` is of the graph exported last.
The process dies with its parent, however that ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from graphcache.build.retryable import is_retryable
from graphcache.errors import GraphcacheError, SpoiledError
from graphcache.graph import Graph, TensorSpec
from graphcache.process.helper import take_stdout
from graphcache.proof.cost import Work
from graphcache.proof.verdict import Verdict
from graphcache.source.hash import digest_now
from graphcache.store.base import Entry
from graphcache.store.local import LocalStore
from graphcache.toolchain.base import Compiled

_PR_SET_PDEATHSIG = 1


class GraphCompiler(Protocol):
    """What a worker does for a graph. A fake one tests everything around it."""

    revision: str

    def export(self, graph: Graph) -> tuple[str, Sequence[TensorSpec]]:
        """The program's digest, and the results of the graph, which `compile_exported` then compiles."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The compiler settings of the graph that was exported last: its own, or those recommended for its program."""

    def compile_exported(self) -> Compiled:
        """Compiled and checked."""

    def work(self, graph: Graph) -> Work:
        """What one call of the graph does."""

    def prove(self, store: LocalStore, entry: Entry) -> Verdict:
        """Whether the entry's artifact computes what its graph does."""


class FuriosaGraphCompiler:
    """torch and the vendor's compiler."""

    def __init__(self, fusion: int, scratch: Path) -> None:
        from graphcache.toolchain.furiosa import FuriosaCompiler

        self._fusion = fusion
        self._compiler = FuriosaCompiler(fusion, scratch)
        self.revision = self._compiler.revision
        self._last: Any = None

    def export(self, graph: Graph) -> tuple[str, Sequence[TensorSpec]]:
        from graphcache.export.program import export

        exported = export(graph)
        self._last = graph, exported
        return exported.program, exported.outputs

    @property
    def settings(self) -> Mapping[str, str]:
        return dict(self._last[1].settings)

    def compile_exported(self) -> Compiled:
        from graphcache.build.check import check

        graph, exported = self._last
        compiled = self._compiler.compile(exported, exported.settings)
        check(graph, exported.outputs, compiled, fusion=self._fusion)
        return compiled

    def work(self, graph: Graph) -> Work:
        from graphcache.proof.check import work

        return work(graph)

    def prove(self, store: LocalStore, entry: Entry) -> Verdict:
        from graphcache.build.prover import verdict_on

        graph, exported = self._last or (None, None)
        return verdict_on(store, entry, exported.program if exported and graph == entry.graph else None)


class Meter:
    """What the work since `start` took: wall and CPU seconds of this process and its children, peak memory."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        _reset_peak()
        self._wall_secs, self._cpu_secs = time.monotonic(), _cpu_secs()

    def read(self) -> dict[str, Any]:
        return {
            "wall_secs": round(time.monotonic() - self._wall_secs, 3),
            "cpu_secs": round(_cpu_secs() - self._cpu_secs, 3),
            "peak_rss_bytes": _peak_rss_bytes(),
        }


def serve(compiler: GraphCompiler, requests: IO[str], answers: IO[bytes]) -> None:
    """Answers requests until there are no more, or an answer is the last."""
    _answer(answers, {"revision": compiler.revision})
    meter = Meter()
    for line in requests:
        request = json.loads(line)
        with logged(request["log"]):
            answer, payload = _handle(compiler, request, meter)
        _answer(answers, answer, *payload)
        if answer.get("last"):
            return


def _handle(compiler: GraphCompiler, request: dict[str, Any], meter: Meter) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    meter.start()
    try:
        if request["op"] == "export":
            graph = Graph.from_json(request["graph"])
            program, outputs = compiler.export(graph)
            found = {"program": program, "outputs": [spec.as_json() for spec in outputs], "cost": meter.read()}
            return {**found, "settings": dict(compiler.settings), "source": digest_now(graph.function)}, ()
        if request["op"] == "prove":
            return _prove(compiler, request), ()
        if request["op"] == "work":
            return {"work": [_work(compiler, Graph.from_json(graph)) for graph in request["graphs"]]}, ()
        compiled = compiler.compile_exported()
        payload = compiled.runnable, compiled.dfg
        sizes = {"sizes": [len(part) for part in payload], "estimate_ns": compiled.estimate_ns}
        return {**sizes, "cost": meter.read()}, payload
    except Exception as error:  # whatever it is, it is this graph's failure and not the worker's
        traceback.print_exc()
        return _failure(error), ()


def _prove(compiler: GraphCompiler, request: dict[str, Any]) -> dict[str, Any]:
    entry, within = Entry.decode(request["entry"].encode()), request["within_secs"]
    if within is not None:
        expected_secs = compiler.work(entry.graph).secs
        if expected_secs > within:
            return {"expected_secs": expected_secs}
    return {"verdict": compiler.prove(LocalStore(request["store"]), entry).encode().decode()}


def _work(compiler: GraphCompiler, graph: Graph) -> tuple[int, int] | None:
    try:
        found = compiler.work(graph)
    except Exception:  # whatever a graph's code raises; its proof will say so
        traceback.print_exc()
        return None
    return found.products, found.elements


def _failure(error: Exception) -> dict[str, Any]:
    if not isinstance(error, GraphcacheError):
        facts = {"name": "internal", "message": f"{type(error).__name__}: {error}", "hint": ""}
    else:
        facts = error.as_json()
    return {"error": facts, "retryable": is_retryable(error), "last": isinstance(error, SpoiledError)}


def _answer(answers: IO[bytes], value: dict[str, Any], *payload: bytes) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    for part in payload:
        answers.write(part)
    answers.flush()


@contextmanager
def logged(path: str) -> Iterator[None]:
    """Sends file descriptors 1 and 2 to the file at `path`: native code does not know sys.stdout."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(before, 1)
        os.dup2(before, 2)
        os.close(before)


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends, also by kill -9; at once when it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _cpu_secs() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _reset_peak() -> None:
    """Starts the kernel's record of peak memory anew, where it lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Then a graph's peak is the worker's so far.
        return


def _peak_rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="graphcache.build.worker", description="Internal; started by graphcache build."
    )
    parser.add_argument("--fusion", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    die_with(options.parent)
    answers = take_stdout()
    try:
        compiler = FuriosaGraphCompiler(options.fusion, options.scratch)
    except Exception as error:  # the parent reports it, whatever it is
        traceback.print_exc()
        _answer(answers, _failure(error))
        return 1
    serve(compiler, sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
