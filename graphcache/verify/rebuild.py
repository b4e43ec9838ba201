"""`verify --rebuild`: whether compiling again gives the same bytes.

An entry keeps the graph that it was compiled for. When its function exports to the same program still, and the
toolchain is the same in every part, the artifact must come out the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphcache.artifact import artifact_digest, encode
from graphcache.build.build import BuildOptions
from graphcache.build.pool import Answer, Death, Pool, Worker
from graphcache.build.scheduler import cannot_start
from graphcache.graph import TensorSpec
from graphcache.local.memo import Memo
from graphcache.process.scratch import scratch_folder
from graphcache.store.base import Entry
from graphcache.toolchain.base import build_parts
from graphcache.verify.verdict import Verdict, by_fusion, other_toolchain


def rebuilds(entries: Sequence[Entry], memo: Memo, options: BuildOptions) -> Iterator[Verdict]:
    """A verdict for each entry, as it is found. The fusion of `options` is not looked at: each entry has its own.

    Raises ToolchainError for a machine that cannot compile.
    """
    for fusion, group in by_fusion(entries).items():
        toolchain = build_parts(fusion, memo)
        ours = []
        for entry in group:
            difference = other_toolchain(entry, toolchain, tuple({**entry.key.parts, **toolchain}))
            if difference:
                yield Verdict(entry, "skipped", f"another toolchain: {difference}")
            else:
                ours.append(entry)
        if ours:
            yield from _compile(ours, fusion, options)


@dataclass
class _Task:
    entry: Entry
    outputs: tuple[TensorSpec, ...] = ()


def _compile(entries: list[Entry], fusion: int, options: BuildOptions) -> Iterator[Verdict]:
    limits = options.limits(len(entries))
    with scratch_folder() as scratch:
        pool = Pool(options.jobs, fusion=fusion, limits=limits, scratch=scratch, command=options.worker)
        try:
            yield from _drive(pool, entries)
        finally:
            pool.close()


def _drive(pool: Pool, entries: list[Entry]) -> Iterator[Verdict]:
    queue, tasks = list(entries), dict[Worker, _Task]()
    while queue or tasks:
        pool.grow(len(queue) + len(tasks))
        for worker in pool.idle():
            if queue:
                tasks[worker] = _Task(queue.pop(0))
                pool.send(worker, {"op": "export", "graph": tasks[worker].entry.graph.as_json()})
        for event in pool.wait():
            task = tasks.pop(event.worker, None)
            if task is None:
                if not event.worker.revision:
                    raise cannot_start(event)
                # An idle worker that died harmed nobody.
                continue
            verdict = _step(event, task)
            if verdict is not None:
                yield verdict
            else:
                tasks[event.worker] = task
                pool.send(event.worker, {"op": "compile"})


def _step(event: Answer | Death, task: _Task) -> Verdict | None:
    """The verdict, or None when the export has told the same program and the compile comes next."""
    entry = task.entry
    if isinstance(event, Death):
        return Verdict(entry, "skipped" if event.retryable else "failed", event.cause)
    if "error" in event.value:
        return Verdict(entry, "skipped" if event.value["retryable"] else "failed", event.value["error"]["message"])
    if event.payload:
        return _compared(entry, task.outputs, event)
    if event.value["program"] != entry.program:
        return Verdict(entry, "skipped", f"its source exports to another program now: {event.value['program'][:12]}")
    task.outputs = tuple(TensorSpec.from_json(spec) for spec in event.value["outputs"])
    return None


def _compared(entry: Entry, outputs: Sequence[TensorSpec], answer: Answer) -> Verdict:
    runnable, dfg = answer.payload
    data = encode(runnable, dfg, args=entry.graph.args, outputs=outputs, key=entry.key)
    facts: Mapping[str, str] = {"rebuilt": artifact_digest(data)}
    if facts["rebuilt"] == entry.artifact_digest:
        return Verdict(entry, "passed", "the same bytes", facts)
    return Verdict(entry, "failed", f"other bytes: {facts['rebuilt'][:12]}, not {entry.artifact_digest[:12]}", facts)
