"""Builds what a cache lacks: plan, worker processes, check, commit one by one.

With everything in the store no worker is started, and no process imports torch. `graphcache.build.scheduler`
does the work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from graphcache.build.audit import AuditingListener
from graphcache.build.pool import COMMAND, Limits, Pool
from graphcache.build.report import Listener, Report, Silent
from graphcache.build.scheduler import Building
from graphcache.costs import Costs
from graphcache.graph import Graph
from graphcache.local.memo import Memo
from graphcache.local.usage import Ledger
from graphcache.process.limits import available_cpus, available_memory_bytes
from graphcache.process.scratch import scratch_folder
from graphcache.runtime.versions import known_revision, remember_revision
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.toolchain.base import DEFAULT_FUSION, build_parts, check_settings
from graphcache.way import ways_of

DEFAULT_TIMEOUT_SECS = 3600.0
# The compiler's own peak is about 3 GB at the largest graphs that were measured.
WORKER_BYTES = 3 << 30
# Of the memory that there is, what workers may fill together.
MEMORY_SHARE = 0.9


def default_jobs() -> int:
    """As many workers as there are CPUs for this process, and memory for the compiler."""
    return max(1, min(available_cpus(), int(available_memory_bytes() * MEMORY_SHARE) // WORKER_BYTES))


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build.

    fusion:       PEs that are used as one
    jobs:         workers at once
    timeout_secs: of one graph's export or compile
    memory_bytes: of one worker; None: an equal share of what there is for those that will run
    retry:        compile also what the compiler refused before
    prove:        prove what is compiled, where that takes less than the compile did
    reuse:        take any way of a graph that the cache has, rather than compile the first one
    worker:       the command line of a worker
    """

    fusion: int = DEFAULT_FUSION
    jobs: int = field(default_factory=default_jobs)
    timeout_secs: float = DEFAULT_TIMEOUT_SECS
    memory_bytes: int | None = None
    retry: bool = False
    prove: bool = False
    reuse: bool = False
    worker: Sequence[str] = COMMAND

    def limits(self, graphs: int) -> Limits:
        """For a worker of a build of so many graphs."""
        workers = max(1, min(self.jobs, graphs))
        share = int(available_memory_bytes() * MEMORY_SHARE / workers)
        return Limits(self.timeout_secs, self.memory_bytes or share)


def build(
    graphs: Sequence[Graph],
    store: LocalStore,
    memo: Memo,
    *,
    programs: Programs,
    options: BuildOptions,
    costs: Costs | None = None,
    listener: Listener | None = None,
) -> Report:
    """Fills `store` with the artifacts of `graphs`, whose names are unique.

    costs: of earlier compiles, to say how long things will take and to start the longest first

    Raises ToolchainError and StoreError, before anything is compiled, for an environment that cannot compile and a
    store that cannot be written; SourceError for a graph whose source cannot be read. A graph that cannot be compiled
    raises nothing: it is an outcome.
    """
    started = time.monotonic()
    for way in (way for graph in graphs for way in ways_of(graph)):
        check_settings(way.graph.settings or {})
    revision = known_revision_checked(options.fusion, memo)
    with ExitStack() as stack:

        def pool(count: int) -> Pool:
            made = Pool(
                options.jobs,
                fusion=options.fusion,
                limits=options.limits(count),
                scratch=stack.enter_context(scratch_folder()),
                command=options.worker,
            )
            stack.callback(made.close)
            return made

        audit = AuditingListener(listener or Silent(), store)
        building = Building(
            store,
            programs,
            costs or Costs(),
            audit,
            pool,
            options.jobs,
            options.timeout_secs,
            options.prove,
        )
        if revision is None and graphs:
            # The first worker knows it as soon as any process could.
            revision = building.first_revision(len(graphs))
            remember_revision(memo, revision)
        toolchain = audit.toolchain = build_parts(options.fusion, memo, revision)
        outcomes = building.run(graphs, toolchain, retry=options.retry, choice="best" if options.reuse else "first")
    found = (o.entry.key.digest for o in outcomes if o.entry and o.state in ("ready", "same program"))
    ledger = Ledger(memo)
    ledger.record(found)
    had_to = [o.item for o in outcomes if o.state in ("compiled", "elsewhere", "failed")]
    ledger.record_misses((item.graph.catalog, item.miss) for item in had_to if item.miss is not None)
    return Report(tuple(outcomes), toolchain, time.monotonic() - started)


def known_revision_checked(fusion: int, memo: Memo) -> str | None:
    """The compiler's revision, if it is remembered. Raises ToolchainError for whatever a build needs and lacks here."""
    # First, since it says what to install: without the vendor there is no revision to be asked for.
    build_parts(fusion, memo, "told by the first worker")
    return known_revision(memo)
