"""A cache of compiled graphs, as other projects use it: plan, build, look up, load, call, compare, verify.

Each method is a few lines over the module that does the work, with the cache's folder and fusion filled in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphcache.artifact import Artifact
from graphcache.build.build import DEFAULT_TIMEOUT_SECS, BuildOptions, build, default_jobs
from graphcache.build.prove import Proven, prove
from graphcache.build.report import Listener, Report
from graphcache.catalog import names
from graphcache.errors import UsageError
from graphcache.export.client import export_programs, installed_torch
from graphcache.graph import Graph
from graphcache.local.memo import memo_of
from graphcache.location import cache_dir
from graphcache.lookup import entries, look_up
from graphcache.manifest.diff import Comparison, Now, compare, listed
from graphcache.manifest.file import read_manifest
from graphcache.manifest.manifest import known_programs
from graphcache.plan import PlanItem
from graphcache.process.own_command import build_command
from graphcache.remote.opening import open_store
from graphcache.remote.url import parse
from graphcache.runtime.host_graph import HostGraph
from graphcache.runtime.versions import runtime_parts
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.access import check_private
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from graphcache.store.read_only import ReadOnly
from graphcache.toolchain.base import DEFAULT_FUSION, check_fusion
from graphcache.toolchain.visible import visible_parts
from graphcache.trust.guard import guard_of_environment
from graphcache.verify import integrity

if TYPE_CHECKING:
    from graphcache.device.base import DeviceBackend


class Cache:
    """The cache in a folder, for artifacts of one fusion.

    folder:    where it lies, as a whole path; it need not exist before the first build
    fusion:    PEs that a device uses as one; a process can use artifacts of one fusion only
    read_only: whether nothing in it is ever written, whatever the file system would allow
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        fusion: int = DEFAULT_FUSION,
        read_only: bool = False,
        remotes: Sequence[str] = (),
    ) -> None:
        """folder: None is $GRAPHCACHE_DIR, else `graphcache` in the XDG cache folder: where the commands look too
        remotes: where to look, in turn, for what the folder lacks: URLs such as `s3://bucket/graphcache`, and shared
                 folders. It is brought into the folder, checked; nothing is written to a remote

        Raises StoreError when nothing names a folder; UsageError for a fusion that there is not, a URL that is none,
        and for remotes of a folder that is only read; RemoteError for a remote that cannot be talked to from here.
        """
        check_fusion(fusion)
        self._given = folder
        self.folder: Path = cache_dir(folder)
        self.fusion = fusion
        self.read_only = read_only
        if read_only and remotes:
            raise UsageError("a folder that is only read cannot take what a remote has", hint="leave out either")
        if read_only:
            check_private(self.folder)
            self._store: LocalStore = ReadOnly(self.folder, guard_of_environment())
        else:
            self._store = open_store(self.folder, [parse(url) for url in remotes])

    def plan(self, graphs: Iterable[Graph]) -> list[PlanItem]:
        """One item a graph, in the order given: ready, or the reason why not. Compiles and exports nothing.

        Raises ToolchainError where no furiosa-torch is installed, SourceError for a graph whose source is not there.
        """
        with memo_of(self.folder, read_only=self.read_only) as memo:
            toolchain = runtime_parts(self.fusion, memo)
        return look_up(graphs, store=self._store, toolchain=toolchain)

    def build(
        self,
        graphs: Iterable[Graph],
        *,
        jobs: int | None = None,
        timeout_secs: float = DEFAULT_TIMEOUT_SECS,
        retry: bool = False,
        listener: Listener | None = None,
    ) -> Report:
        """Compiles what the cache lacks, in processes of its own, and says how each graph ended.

        A graph that cannot be compiled raises nothing: it is among the report's `failed`. What is finished is kept at
        once, so a build that is interrupted goes on where it was.

        jobs:         compiles at once; None: as CPUs and memory allow
        timeout_secs: a graph that takes longer fails
        retry:        whether to compile also what the compiler refused before
        listener:     is told what goes on

        Raises UsageError for a cache that is read-only and for two graphs of one name; ToolchainError for a machine
        that cannot compile, StoreError for a folder that cannot be written, SourceError for a graph without source.
        """
        if self.read_only:
            raise UsageError(f"the cache {self.folder} was opened read-only", hint="Cache(folder) to build")
        asked = list(graphs)
        _check_names(asked)
        options = BuildOptions(
            fusion=self.fusion,
            jobs=default_jobs() if jobs is None else jobs,
            timeout_secs=timeout_secs,
            retry=retry,
            prove=True,
        )
        with memo_of(self.folder, building=True) as memo:
            programs = Programs(self.folder, guard=self._store.guard)
            return build(asked, self._store, memo, programs=programs, options=options, listener=listener)

    def require(self, graphs: Iterable[Graph], *, command: str | None = None) -> dict[str, HostGraph]:
        """All graphs as functions of CPU tensors, by their names.

        command: what fills the cache, for the error's hint; None: as far as the graphs' catalogs tell

        Raises MissingGraphsError, with every graph that is missing, why, and the command, before anything is loaded;
        ToolchainError, SourceError as `plan` does, CorruptError for a damaged artifact.
        """
        asked = list(graphs)
        _check_names(asked)
        found = entries(self.plan(asked), command=self._build_command(asked) if command is None else command)
        return {graph.name: HostGraph(graph, self._store.open(found[graph.name])) for graph in asked}

    def artifact(self, graph: Graph) -> Artifact:
        """The checked artifact of a graph. Raises as `require` does."""
        found = entries(self.plan([graph]), command=self._build_command([graph]))
        return self._store.open(found[graph.name])

    @contextmanager
    def device(self, name: str) -> Iterator[DeviceBackend]:
        """A device that calls this cache's graphs: `furiosa:3`, `furiosa:auto`, or `emulator`, a card on the host.

        Until the block ends nothing in this process can compile, the device's memory is counted, and a card that
        somebody else holds is not taken (docs/backend.md).

        Raises UsageError for a name of no device or of several, CardError with all that keeps a card from being taken,
        ToolchainError where compiles cannot be refused.
        """
        from graphcache.device.select import choose, open_devices

        choice = choose(name, fusion=self.fusion)
        if len(choice.devices) != 1:
            raise UsageError(f"{name!r} is {len(choice.devices)} devices", hint="open them one by one")
        (device,) = open_devices(choice, self.artifact, fusion=self.fusion)
        with closing(device):
            yield device

    def diff(self, manifest: str | os.PathLike[str]) -> tuple[Comparison, ...]:
        """What a committed manifest says against what is true now, one comparison a graph, those that are gone last.

        Exports what nobody remembers. Raises kinds of ManifestError for the file, CatalogError for the catalogs that it
        names, SourceError for a graph whose source cannot be read.
        """
        recorded = read_manifest(Path(manifest))
        # A folder that is no store, named by mistake perhaps, is left as it is.
        root = self.folder if self._store.layout.is_store() else None
        programs = Programs(root, known_programs([recorded]), read_only=self.read_only, guard=self._store.guard)
        with memo_of(self.folder, read_only=self.read_only) as memo:
            parts = visible_parts(memo).parts
        now = Now(
            sources=SourceHashes(WorkTree()),
            programs=programs,
            toolchain=parts,
            store=self._store,
            torch=installed_torch(),
            export=export_programs,
        )
        (comparisons,) = compare([(recorded, listed(recorded))], now)
        return comparisons

    def verify(self) -> integrity.Report:
        """Reads every byte in the cache against its digests. What is corrupt is quarantined, unless it is read-only."""
        return integrity.verify(self._store)

    def prove(self, graphs: Iterable[Graph], *, jobs: int | None = None) -> list[Proven]:
        """Whether the artifacts of graphs compute what their functions say, shown by running them on the host in
        processes of their own (docs/proof.md); one answer a graph, in their order. What has a verdict is not run again.

        jobs: proofs at once; None: as CPUs and memory allow

        Raises UsageError for a cache that is read-only, and as `require` does for graphs that are not in the cache.
        """
        if self.read_only:
            raise UsageError(f"the cache {self.folder} was opened read-only", hint="Cache(folder) to keep verdicts")
        asked = list(graphs)
        found = entries(self.plan(asked), command=self._build_command(asked))
        # An entry may be of another graph with the same program: its own function is the one to compare with.
        ours = [replace(e, facts=replace(e.facts, graph=graph)) for graph in asked for e in (found[graph.name],)]
        options = BuildOptions(fusion=self.fusion, jobs=default_jobs() if jobs is None else jobs)
        with memo_of(self.folder) as memo:
            return prove(self._store, ours, memo, options=options)

    def _build_command(self, graphs: Sequence[Graph]) -> str:
        """MODEL stands for the checkpoint, which graphs do not know."""
        installed = names()
        catalogs = sorted({graph.catalog for graph in graphs if graph.catalog in installed})
        if not catalogs:
            return "Cache.build(graphs)"
        fusion = self.fusion if self.fusion != DEFAULT_FUSION else None
        return build_command("MODEL", catalogs, fusion=fusion, cache=self._given)


def _check_names(graphs: Sequence[Graph]) -> None:
    """Raises UsageError for two graphs of one name: everything tells graphs by their names."""
    given = [graph.name for graph in graphs]
    for name in given:
        if given.count(name) > 1:
            raise UsageError(f"two graphs are called {name!r}", hint="give each graph a name of its own")
