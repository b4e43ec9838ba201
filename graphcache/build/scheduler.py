"""One build at work: which graph each worker has, and what follows from what it answers.

Each graph goes: export in a worker, look-up of its program, and only when nothing has that program under this
toolchain, compile and check in the same worker, then commit at once. So a build that is killed loses what was being
compiled and nothing else, and the next one goes on from there. A graph that fails stops no other.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from graphcache.artifact import encode
from graphcache.build.pool import Answer, Death, Pool, Worker
from graphcache.build.report import Listener, Outcome, Running, State, Trouble
from graphcache.costs import Costs, Expected
from graphcache.errors import StoreError, ToolchainError
from graphcache.graph import Graph, TensorSpec
from graphcache.key import Key
from graphcache.plan import Choice, PlanItem, Planner
from graphcache.proof.verdict import Verdict
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Cost, Entry, Facts, Failure
from graphcache.store.files import TEMPORARY, write_file
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.vendor.judgement import names_the_machine
from graphcache.way import ways_of

# Someone else gets this many times what the compile should take, and no less than PATIENT_SECS, before it is compiled
# here all the same: a builder may have been stopped, or its node be gone while a shared folder still has its lock.
PATIENCE, PATIENT_SECS = 5.0, 60.0
EDITED = "its source was changed after the build had read it, so which source its program is of cannot be told"
# A graph whose worker's folder is taken is tried so often: a cleaner comes once, not every few seconds.
MOST_TRIES = 3
# Entries of a store that are read to guess costs, which only decide an order: 100,000 would take a minute.
COST_ENTRIES = 2_000
# A failure keeps this much of the end of what its compiler printed.
LOG_BYTES = 1 << 20


@dataclass(kw_only=True)
class Task:
    """A graph that a worker has. After its export `item` has its key, `claim` is held, and `outputs` are known; after
    its compile `entry` is in the store, and is being proven."""

    item: PlanItem
    since: float
    tries: int = 1
    export_cost: Cost | None = None
    outputs: tuple[TensorSpec, ...] = ()
    claim: ExitStack = field(default_factory=ExitStack)
    entry: Entry | None = None


@dataclass(frozen=True)
class Waiting:
    """A graph that someone else compiles."""

    item: PlanItem
    since: float


class Building:
    """The state of one build of graphs whose names are unique.

    make_pool:    is called when the first worker is needed, with the number of graphs that may need one
    timeout_secs: of one compile, here and, as far as is known, elsewhere
    prove:        whether what a worker has compiled is proven by it, where that takes less than the compile did
    """

    def __init__(
        self,
        store: LocalStore,
        programs: Programs,
        costs: Costs,
        listener: Listener,
        make_pool: Callable[[int], Pool],
        jobs: int,
        timeout_secs: float,
        prove: bool = False,
    ) -> None:
        self._store, self._programs, self._costs, self._listener = store, programs, costs, listener
        self._make_pool, self._jobs, self._timeout_secs = make_pool, jobs, timeout_secs
        self._prove = prove
        self._pool: Pool | None = None
        self._most = 0
        self._toolchain: Mapping[str, str] = {}
        self._planner: Planner | None = None
        self._items: dict[str, PlanItem] = {}
        self._refused: defaultdict[str, set[str]] = defaultdict(set)
        self._retry = False
        self._expected: dict[str, Expected] = {}
        self._queue: list[PlanItem] = []
        self._tasks: dict[Worker, Task] = {}
        self._elsewhere: list[Waiting] = []
        self._overdue: set[Key] = set()
        self._compiling: set[Key] = set()
        self._tries: dict[str, int] = {}
        self._looked_secs = 0.0
        self._outcomes: dict[str, Outcome] = {}

    def first_revision(self, graphs: int) -> str:
        """The compiler's revision from the first worker that is ready. Raises ToolchainError when none can be."""
        assert graphs, "no worker would be started, and none could answer"
        self._most = graphs
        self._workers.grow(graphs)
        while not any(worker.revision for worker in self._workers.workers):
            for event in self._workers.wait():
                raise cannot_start(event)
        return next(worker.revision for worker in self._workers.workers if worker.revision)

    def run(
        self, graphs: Sequence[Graph], toolchain: Mapping[str, str], *, retry: bool, choice: Choice = "first"
    ) -> list[Outcome]:
        """How each graph ended, in the order given; then those that their ways need besides."""
        self._toolchain, self._retry = toolchain, retry
        planner = Planner(
            sources=SourceHashes(WorkTree()),
            programs=self._programs,
            toolchain=toolchain,
            store=self._store,
            choice=choice,
            only={},
        )
        self._planner = planner
        items = planner.items(graphs)
        self._items = {item.graph.name: item for item in items}
        to_do = [item for item in items if self._is_to_do(item)]
        self._expected = self._expect(to_do)
        self._queue = _longest_first(to_do, self._expected)
        self._most = len(to_do)
        if to_do:
            probe(self._store)
        self._listener.planned(items, self._expected, min(len(to_do), self._jobs))
        for item in items:
            if not self._is_to_do(item):
                # A manifest may have told its program. A trainer that starts from this cache sees no manifest.
                self._remember(item)
                self._settle(item, "ready")
        while self._queue or self._tasks or self._elsewhere:
            self._feed()
            for event in self._workers.wait():
                self._handle(event)
            self._tick()
        return [self._outcomes[name] for name in self._items]

    @property
    def _workers(self) -> Pool:
        if self._pool is None:
            self._pool = self._make_pool(self._most)
        return self._pool

    # --- giving out work ------------------------------------------------------------------------------------------

    def _is_to_do(self, item: PlanItem) -> bool:
        return item.state in ("missing", "unknown") or (item.state == "failed" and self._retry)

    def _expect(self, to_do: Sequence[PlanItem]) -> dict[str, Expected]:
        """What each compile should take, from what the caller remembers, and from some of the store's entries."""
        if to_do:
            for entry in islice(self._store.entries(), COST_ENTRIES):
                self._costs.add(entry.graph, entry.cost)
        found = ((item.made.name, self._costs.expect(item.made)) for item in to_do)
        return {name: expected for name, expected in found if expected is not None}

    def _feed(self) -> None:
        self._look_elsewhere()
        self._workers.grow(len(self._queue) + len(self._tasks))
        for worker in self._workers.idle():
            if self._queue:
                self._check_revision(worker)
                item = self._queue.pop(0)
                self._tasks[worker] = Task(
                    item=item, since=time.monotonic(), tries=self._tries.pop(item.graph.name, 0) + 1
                )
                self._workers.send(worker, {"op": "export", "graph": item.made.as_json()})
                self._listener.started(item.made, self._expected.get(item.made.name))

    def _check_revision(self, worker: Worker) -> None:
        # The memo may be of another installation; a key must never name a compiler that did not compile.
        ours = self._toolchain["compiler-revision"]
        if worker.revision != ours:
            raise ToolchainError(
                f"the compiler is of revision {worker.revision}, not {ours}: it was replaced while this build started",
                hint="run the build again",
            )

    def _look_elsewhere(self) -> None:
        """Takes up graphs that others compiled, or gave up, since the last look."""
        if not self._elsewhere or time.monotonic() - self._looked_secs < self._store.poll_secs:
            return
        self._looked_secs = time.monotonic()
        waiting, self._elsewhere = self._elsewhere, []
        self._store.bring([self._planner.wanted(w.item) for w in waiting if self._planner and w.item.key])
        for wait in waiting:
            item = wait.item
            assert item.key is not None
            entry = self._store.lookup(item.key)
            with self._store.claim(item.key) as free:
                if entry is not None:
                    ours = item.key in self._compiling
                    self._settle(replace(item, entry=entry), "same program" if ours else "elsewhere")
                elif free:
                    self._queue.append(item)
                elif self._is_overdue(wait):
                    self._overdue.add(item.key)
                    self._queue.append(item)
                else:
                    self._elsewhere.append(wait)

    def _is_overdue(self, wait: Waiting) -> bool:
        if self._is_ours(wait.item):
            return False
        expected = self._expected.get(wait.item.made.name)
        guess = expected if not self._store.leased else None
        patience_secs = max(PATIENT_SECS, PATIENCE * guess.secs) if guess else self._timeout_secs
        return time.monotonic() - wait.since > min(patience_secs, self._timeout_secs)

    def _is_ours(self, item: PlanItem) -> bool:
        """Whether a worker of this build compiles what `item` needs."""
        return any(task.item.key == item.key for task in self._tasks.values() if task.export_cost is not None)

    def _tick(self) -> None:
        now, expected = time.monotonic(), self._expected
        tasks = (task for task in self._tasks.values())
        self._listener.tick(
            [Running(t.item.made, now - t.since, expected.get(t.item.made.name)) for t in tasks],
            [item.made for item in self._queue],
        )

    # --- taking in answers ----------------------------------------------------------------------------------------

    def _handle(self, event: Answer | Death) -> None:
        task = self._tasks.pop(event.worker, None)
        if task is None:
            if not event.worker.revision:
                raise cannot_start(event)
            # An idle worker that died, or grew too large, harmed nobody.
            return
        if task.entry is not None:
            self._proven(task.item, task.entry, event)
        elif self._lost_its_folder(event) and task.tries < MOST_TRIES:
            self._try_again(task, event.worker)
        elif isinstance(event, Death):
            self._fail(task, event.cause, event.retryable, event.worker.log, over_limit=event.over_limit)
        elif "error" in event.value:
            self._fail(task, event.value["error"]["message"], event.value["retryable"], event.worker.log)
        elif task.export_cost is None:
            self._exported(task, event)
        else:
            self._commit(task, event)

    def _lost_its_folder(self, event: Answer | Death) -> bool:
        """Whether a failure may be for want of the worker's own folder, which somebody has taken."""
        failed = isinstance(event, Death) or event.value.get("retryable", False)
        return failed and not self._workers.is_whole(event.worker)

    def _try_again(self, task: Task, worker: Worker) -> None:
        """In a new worker, with a new folder; whatever this one does from here on fails alike."""
        self._workers.retire(worker)
        task.claim.close()
        self._tries[task.item.graph.name] = task.tries
        self._queue.insert(0, task.item)

    def _exported(self, task: Task, answer: Answer) -> None:
        """The graph's program is known: it is in the store, somebody compiles it, or this worker goes on to."""
        if answer.value["source"] != task.item.source.digest:
            # Were it kept, or written to a manifest, the old source would have the new one's program.
            self._fail(task, EDITED, True, answer.worker.log)
            return
        made = task.item.made.with_recommended(answer.value["settings"])
        task.item = self._with_program(task.item.with_made(made), str(answer.value["program"]))
        self._remember(task.item)
        if not self._is_to_do(task.item):
            if not task.item.is_out or not self._go_on(task.item, Trouble(task.item.out_cause, "", retryable=False)):
                self._settle(task.item, "same program")
            return
        assert task.item.key is not None
        free = task.claim.enter_context(self._store.claim(task.item.key))
        if not free and (self._is_ours(task.item) or task.item.key not in self._overdue):
            task.claim.close()
            self._wait_for_others(task.item)
            return
        if self._store.leased:
            # Whoever had the lease may have committed since we looked.
            task.item = self._with_program(task.item, str(answer.value["program"]))
            if not self._is_to_do(task.item):
                task.claim.close()
                self._settle(task.item, "elsewhere")
                return
        assert task.item.key is not None
        self._compiling.add(task.item.key)
        task.export_cost = _cost(answer)
        task.outputs = tuple(TensorSpec.from_json(spec) for spec in answer.value["outputs"])
        self._tasks[answer.worker] = task
        self._workers.send(answer.worker, {"op": "compile"})

    def _wait_for_others(self, item: PlanItem) -> None:
        self._elsewhere.append(Waiting(item, time.monotonic()))
        if not self._is_ours(item):
            self._listener.elsewhere(item.made)

    def _remember(self, item: PlanItem) -> None:
        assert item.program is not None
        self._programs.remember(item.source.digest, item.made, self._toolchain["torch"], item.program)

    def _with_program(self, item: PlanItem, program: str) -> PlanItem:
        """The item again now that its program is known; its reason stays why there was something to do."""
        assert self._planner is not None
        found = self._planner.of_program(item, program)
        if found.entry is None and self._store.bring([self._planner.wanted(found)]):
            found = self._planner.of_program(item, program)
        return replace(found, reason=item.reason or found.reason, miss=item.miss or found.miss)

    def _commit(self, task: Task, answer: Answer) -> None:
        item, (runnable, dfg) = task.item, answer.payload
        assert item.key is not None
        assert task.export_cost is not None
        data = encode(runnable, dfg, args=item.made.args, outputs=task.outputs, key=item.key)
        cost = _sum(task.export_cost, _cost(answer))
        with task.claim:
            entry = self._store.commit(item.key, data, Facts(item.made, cost, answer.value["estimate_ns"]))
        if not self._prove:
            self._settle(replace(item, entry=entry), "compiled")
            return
        self._tasks[answer.worker] = replace(task, entry=entry)
        request = {"op": "prove", "store": str(self._store.root), "entry": entry.encode().decode()}
        self._workers.send(answer.worker, {**request, "within_secs": cost.wall_secs})

    def _proven(self, item: PlanItem, entry: Entry, event: Answer | Death) -> None:
        """Whatever a proof ended with, the artifact is there; only a verdict that says so keeps it from being used."""
        verdict = None
        if isinstance(event, Answer) and "verdict" in event.value:
            verdict = Verdict.decode(str(event.value["verdict"]).encode())
            self._store.record_verdict(verdict)
        if verdict is None or verdict.state != "disproven":
            self._settle(replace(item, entry=entry, verdict=verdict), "compiled")
        elif not self._go_on(item, Trouble(verdict.text, "", retryable=False)):
            self._settle(replace(item, state="disproven", reason=verdict.text, verdict=verdict), "failed")

    def _fail(self, task: Task, cause: str, retryable: bool, log: Path, *, over_limit: bool = False) -> None:
        retryable = retryable or names_the_machine(_end_of(log).decode(errors="replace"))
        item, trouble = task.item, Trouble(cause, self._keep_log(task.item.made, log), retryable)
        with task.claim:
            # What an export fails for is the source's, and no key has that in it.
            if task.export_cost is not None:
                assert item.key is not None
                created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                failure = Failure(
                    key=item.key,
                    graph=item.made.name,
                    cause=cause,
                    log=trouble.log,
                    retryable=retryable,
                    created=created,
                )
                self._store.record_failure(failure)
        tried = task.export_cost is not None and (over_limit or not retryable)
        if not tried or not self._go_on(item, trouble):
            self._finish(Outcome(item, "failed", None, trouble))

    def _go_on(self, item: PlanItem, trouble: Trouble) -> bool:
        """Takes the next way of a graph after one that the compiler refused; False when there is none."""
        refused = self._refused[item.graph.name]
        refused.add(item.made.name)
        if refused >= {way.graph.name for way in ways_of(item.graph)}:
            return False
        assert self._planner is not None
        following = self._planner.item(item.graph.without_recommended(), skip=refused)
        if following.is_out and not (self._retry and following.state == "failed"):
            return False
        self._listener.refused(item, trouble, following)
        if self._is_to_do(following):
            self._queue.insert(0, following)
        else:
            self._settle(following, "ready")
        return True

    def _keep_log(self, graph: Graph, log: Path) -> str:
        """Copies the end of what was printed into the store; returns its name there, empty when it cannot be kept."""
        path = self._store.layout.new_log(graph.name)
        try:
            write_file(path, _end_of(log), replace=True)
        except (OSError, StoreError):
            return ""
        return self._store.layout.relative(path)

    def _settle(self, item: PlanItem, state: State) -> None:
        """The end of an item that has an entry, failed before, or is disproven."""
        for need in item.needs if item.entry is not None else ():
            self._require(need)
        if item.entry is not None:
            self._finish(Outcome(item, state, item.entry))
        elif item.state == "disproven":
            self._finish(Outcome(item, "failed", None, Trouble(item.reason, "", retryable=False)))
        else:
            assert item.failure is not None
            self._finish(Outcome(item, "failed", None, Trouble.of(item.failure)))

    def _require(self, need: Graph) -> None:
        """Adds a graph that a way needs besides, unless it is among the build's."""
        if need.name in self._items:
            return
        assert self._planner is not None
        item = self._items[need.name] = self._planner.item(need)
        if self._is_to_do(item):
            self._queue.append(item)
        else:
            self._remember(item)
            self._settle(item, "ready")

    def _finish(self, outcome: Outcome) -> None:
        self._outcomes[outcome.graph.name] = outcome
        self._listener.finished(outcome)


def _end_of(log: Path) -> bytes:
    """The end of what a compiler printed; nothing where its log is gone."""
    try:
        return log.read_bytes()[-LOG_BYTES:]
    except OSError:
        return b""


def _longest_first(items: Iterable[PlanItem], expected: Mapping[str, Expected]) -> list[PlanItem]:
    """So that the last worker to finish is not the one that started the largest graph last."""

    def secs(item: PlanItem) -> float:
        known = expected.get(item.made.name)
        # Without any record, larger counts as longer; only the order matters.
        return known.secs if known else sum(spec.elements for spec in item.made.args) / 1e7

    return sorted(items, key=lambda item: (-secs(item), item.graph.name))


def _cost(answer: Answer) -> Cost:
    return Cost(**answer.value["cost"])


def _sum(a: Cost, b: Cost) -> Cost:
    return Cost(
        round(a.wall_secs + b.wall_secs, 3),
        round(a.cpu_secs + b.cpu_secs, 3),
        max(a.peak_rss_bytes, b.peak_rss_bytes),
    )


def cannot_start(event: Answer | Death) -> ToolchainError:
    """A worker that never became ready: no other would."""
    if isinstance(event, Answer):
        error = event.value["error"]
        return ToolchainError(f"the compiler cannot be loaded: {error['message']}", hint=error["hint"])
    last = _end_of(event.worker.log).decode(errors="replace").strip().splitlines()[-1:]
    return ToolchainError(": ".join([f"a worker could not start: {event.cause}", *last]), hint=event.hint)


def probe(store: LocalStore) -> None:
    """Writes to the store as a commit would, before anything is compiled for it. Raises StoreError when it cannot."""
    for top in ("objects", "entries"):
        path = store.root / top / f"{TEMPORARY}{os.urandom(16).hex()}"
        write_file(path, b"", replace=True)
        path.unlink(missing_ok=True)
