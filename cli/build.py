"""`graphcache build`: compile the graphs of a model that the cache lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from cli.cache import proof_state, toolchain_text, warn_of_faults, warn_of_troubles
from cli.options import (
    MOST_SECS,
    PATH,
    Positive,
    cache_option,
    catalog_options,
    chosen_options,
    cli_command,
    given,
    json_option,
    only_option,
    remote_option,
    sizes,
    timeout_option,
)
from cli.progress import build_progress
from cli.prove import Lines as ProofLines
from cli.render import emit_facts, emit_json, emit_table
from graphcache import catalog
from graphcache.build.build import DEFAULT_TIMEOUT_SECS, BuildOptions, build
from graphcache.build.prove import Quiet, prove
from graphcache.build.report import Listener, Report
from graphcache.build.trace import TracingListener
from graphcache.catalog import CatalogOptions
from graphcache.costs import Costs
from graphcache.errors import REFUSED_EXIT_CODE, UsageError
from graphcache.graph import Listing
from graphcache.header.table import TensorTable
from graphcache.jobs.shard import Shard, parse_shard, select
from graphcache.local.memo import Memo, memo_of
from graphcache.location import cache_dir
from graphcache.manifest import model_source
from graphcache.manifest.file import check_target, is_manifest, read_manifest, write_manifest
from graphcache.manifest.manifest import Compiled, Manifest, known_programs, other_bytes
from graphcache.manifest.model_source import ModelSource
from graphcache.manifest.text import ManifestError
from graphcache.marks.list_marked import list_marked
from graphcache.marks.recorded import read_shapes
from graphcache.plan import Choice, PlanItem, plan
from graphcache.process.chrome_trace import trace_json
from graphcache.process.shown import bytes_text, count_text, printable, secs_text
from graphcache.process.streams import report_warning
from graphcache.process.whole_file import replace_file
from graphcache.proof.verdict import Verdict
from graphcache.remote.opening import open_store
from graphcache.remote.url import remote_urls
from graphcache.source.checkout import check_sources
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Cost, Entry
from graphcache.store.files import check_writable
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs, question_digest
from graphcache.toolchain.base import DEFAULT_FUSION, FUSIONS, build_parts

FAILED = 1
PROOFS = ("all", "auto", "none")
# What no machine has.
MOST_GB = 1e6


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a command line asks for: a model's graphs, from which catalogs and options, and where it all goes.

    manifests: those that `--shapes-from` and `--manifest` name, as they were before
    """

    model: ModelSource
    catalogs: tuple[str, ...]
    options: CatalogOptions
    fusion: int
    listing: Listing
    store: LocalStore
    manifests: tuple[Manifest, ...]

    @property
    def programs(self) -> Programs:
        return Programs(self.store.root, known_programs(self.manifests), guard=self.store.guard)

    def of_shard(self, shard: Shard) -> Request:
        """The same for the graphs of one shard."""
        graphs = tuple(select(self.listing.graphs, shard, self.costs))
        return replace(self, listing=replace(self.listing, graphs=graphs))

    @property
    def costs(self) -> Costs:
        """Compile costs from the manifests; the build adds the store's."""
        costs = Costs()
        for manifest in self.manifests:
            for recorded in manifest.graphs:
                if recorded.compiled is not None:
                    costs.add(recorded.made, recorded.compiled.cost)
        return costs


@cli_command(
    "build",
    examples=(
        "graphcache build --shapes-from model.safetensors --only adamw",
        "graphcache build --shapes-from Llama-3.1-8B --only adamw --fusion 8 --jobs 4",
        "graphcache build --shapes-from Llama-3.1-8B --remote s3://bucket/graphcache --push",
        "graphcache build --shapes-from cache_manifests/llama-3.1-8b-adamw.json --only adamw --dry-run",
        "graphcache build --only lora --set lora.rank=8",
        "graphcache build --from mymodel.graphs --dim t=64 --dim h=576",
        "graphcache build --shapes-from Llama-3.1-8B --dry-run --manifest cache_manifests/llama-3.1-8b.json",
    ),
)
@click.option("--shapes-from", "source", metavar="MODEL", type=PATH, help="A checkpoint, or a manifest of one.")
@click.option("--from", "module", metavar="MODULE", help="The functions of MODULE that graphcache.compiled marks.")
@click.option(
    "--dim",
    "dims",
    metavar="NAME=SIZE",
    multiple=True,
    callback=sizes,
    help="With --from: the size that marks call NAME; may be given several times.",
)
@click.option(
    "--shapes",
    type=PATH,
    metavar="FILE",
    help="With --from: the graphs that a run under graphcache.record(FILE) called.",
)
@only_option
@click.option(
    "--fusion",
    type=int,
    help=f"PEs that are used as one device: {', '.join(map(str, FUSIONS))}. A card has 8; more is for several cards."
    f"  [default: {DEFAULT_FUSION}]",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Compiles at once. Default: as CPUs and memory allow.")
@timeout_option("A graph that takes longer fails.", most_secs=MOST_SECS, default_secs=DEFAULT_TIMEOUT_SECS)
@click.option(
    "--memory",
    "memory_gb",
    type=Positive(most=MOST_GB),
    metavar="GB",
    help="A compile that holds more fails. Default: an equal share of what there is.",
)
@catalog_options
@click.option(
    "--manifest",
    type=PATH,
    metavar="FILE",
    help="Write the graphs, their artifacts and costs to FILE; with --dry-run, what is missing as planned.",
)
@click.option(
    "--prove",
    "proofs",
    type=click.Choice(PROOFS),
    default="auto",
    show_default=True,
    help="Prove that artifacts are right: all of the model's; what is compiled now and sooner proven than that took; "
    "or none.",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="Only this part of N, from 0; auto/N takes the number that Kubernetes or Slurm gives the job.",
)
@click.option("--retry", is_flag=True, help="Compile also what the compiler refused before.")
@click.option(
    "--reuse", is_flag=True, help="Take any way of a graph that the cache has, rather than compile the first."
)
@click.option("--dry-run", is_flag=True, help="Show what would be compiled, and why.")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the timeline, for ui.perfetto.dev."
)
@cache_option
@remote_option
@click.option("--push", is_flag=True, help="Write what is built to the last remote that can be written, at once.")
@json_option
def command(
    source: Path | None,
    module: str | None,
    dims: Mapping[str, int],
    shapes: Path | None,
    only: tuple[str, ...],
    manifest: Path | None,
    cache: str | None,
    remotes: tuple[str, ...],
    push: bool,
    shard: str | None,
    dry_run: bool,
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compile the graphs of a model that the cache lacks. Reads headers only, needs no card.

    Interrupted in any way, it loses only what was being compiled; run it again and it goes on. A graph that cannot be
    compiled stops no other. Exit code 1: another try may help; 4: the compiler refuses each graph that failed. A
    manifest's catalogs, options and fusion stand where none are given.

    --from MODULE builds the graphs of marked functions instead: those whose sizes are all numbers, or named by --dim,
    and those of a recorded run. --only CATALOG alone is for catalogs that need no model.
    """
    if shard is not None and manifest is not None:
        raise UsageError("--manifest with --shard would list a part of the graphs", hint="write it when all are built")
    part = None if shard is None else parse_shard(shard)
    store = _store(cache, remotes, push and not dry_run)
    _check_sources_given(source, module, dims, shapes, only, manifest, options)
    if module is not None:
        request = _marked_request(module, dims, shapes, store, options["fusion"])
    else:
        request = read_request(source, only, manifest, store, options)
    if part is not None:
        request = request.of_shard(part)
    with memo_of(request.store.root, building=not dry_run) as memo:
        if dry_run:
            return _dry_run(request, memo, manifest, as_json, reuse=options["reuse"])
        with build_progress(as_json) as progress, _traced(progress, trace) as listener:
            report = build(
                request.listing.graphs,
                request.store,
                memo,
                programs=request.programs,
                options=_build_options({**options, "fusion": request.fusion}),
                costs=request.costs,
                listener=listener,
            )
        if options["proofs"] == "all":
            _prove_all(request, report, memo, options, as_json)
    disproven = [
        entry.graph.name for entry, verdict in _verdicts(request, report) if proof_state(verdict) == "disproven"
    ]
    written = manifest is not None and not report.failed and not disproven
    if manifest is not None and written:
        write_request(manifest, request, report.toolchain, ((o.item, o.entry) for o in report.outcomes))
    if as_json:
        emit_json(_as_json(request, report, str(manifest) if written else None))
    else:
        _show(request, report, manifest, written)
    if push:
        _push_built(request, report)
    return FAILED if disproven else exit_code(report)


@contextmanager
def _traced(listener: Listener, trace: Path | None) -> Iterator[Listener]:
    """The listener; with `trace` one that keeps the timeline too, which is written however the build ends."""
    if trace is None:
        yield listener
        return
    with _writing(trace):
        check_writable(trace.absolute().parent.resolve(strict=True))
    tracing = TracingListener(listener)
    try:
        yield tracing
    finally:
        with _writing(trace):
            replace_file(trace, trace_json(tracing.spans).encode())


@contextmanager
def _writing(trace: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--trace {trace} cannot be written: {error.strerror}", hint="choose another file") from error


def _check_sources_given(
    source: Path | None,
    module: str | None,
    dims: Mapping[str, int],
    shapes: Path | None,
    only: Sequence[str],
    manifest: Path | None,
    options: Mapping[str, Any],
) -> None:
    """Raises UsageError unless the graphs come from one place, with that place's options alone."""
    if source is not None and module is not None:
        raise UsageError("a build takes either --shapes-from MODEL or --from MODULE", hint="graphcache build --help")
    if source is None and module is None and not only:
        raise UsageError(
            "a build takes --shapes-from MODEL or --from MODULE, or --only for catalogs that need no model",
            hint="graphcache build --help",
        )
    if module is None and (dims or shapes):
        raise UsageError("--dim and --shapes are for the marked functions of --from MODULE")
    if module is not None and (only or manifest):
        raise UsageError(
            "--only and --manifest are for a model's catalogs, and --from names none",
            hint="list the graphs in a catalog",
        )
    for_catalogs = [f"--{name.replace('_', '-')}" for name in CatalogOptions().as_json() if options[name] is not None]
    for_catalogs += ["--set"] if options["own"] else []
    if module is not None and for_catalogs:
        raise UsageError(
            f"{', '.join(for_catalogs)} would be of no effect: catalogs have such options, and --from names none",
            hint="sizes of marked functions are given by --dim NAME=SIZE",
        )


def _marked_request(
    module: str, dims: Mapping[str, int], shapes: Path | None, store: LocalStore, fusion: int | None
) -> Request:
    """The graphs of a module's marked functions, as a request without a model."""
    recorded = [] if shapes is None else read_shapes(shapes)
    theirs = [graph for graph in recorded if graph.function.partition(":")[0] == module]
    found = {graph.name: graph for graph in [*list_marked(module, dims), *theirs]}
    if not found:
        raise UsageError(
            f"{module} marks functions, and no size of theirs is known",
            hint="give each name a size by --dim NAME=SIZE, or --shapes FILE of a run under graphcache.record(FILE)",
        )
    model = ModelSource(module, TensorTable.from_groups(()), None)
    listing = Listing(tuple(found.values()), ())
    return Request(
        model=model,
        catalogs=(),
        options=CatalogOptions(),
        fusion=fusion or DEFAULT_FUSION,
        listing=listing,
        store=store,
        manifests=(),
    )


def exit_code(report: Report) -> int:
    """1 when another try could help, REFUSED_EXIT_CODE when the compiler refuses every graph that failed."""
    if not report.failed:
        return 0
    again = any(outcome.trouble is None or outcome.trouble.retryable for outcome in report.failed)
    return FAILED if again else REFUSED_EXIT_CODE


def _store(cache: str | None, remotes: Sequence[str], push: bool) -> LocalStore:
    urls = remote_urls(remotes)
    if push and not urls:
        raise UsageError("--push, and no remote is named", hint="give --remote, such as s3://bucket/graphcache")
    return open_store(cache_dir(cache), urls, push=push)


def _push_built(request: Request, report: Report) -> None:
    """The rest of --push: what was here before, and which program each source exports to. Raises RemoteError."""
    from graphcache.remote.tiered import TieredStore

    if isinstance(request.store, TieredStore):
        torch = report.toolchain["torch"]
        items = [outcome.item for outcome in report.outcomes]
        answers = [question_digest(item.source.digest, item.made, torch) for item in items]
        request.store.push_built([o.entry for o in report.outcomes if o.entry], answers)


def _prove_all(request: Request, report: Report, memo: Memo, options: Mapping[str, Any], as_json: bool) -> None:
    """Proves what the build has left: what was there before, and what takes longer than its compile."""
    left = [entry for entry, verdict in _verdicts(request, report) if verdict is None]
    chosen = _build_options({**options, "fusion": request.fusion})
    prove(request.store, left, memo, options=chosen, listener=Quiet() if as_json else ProofLines())


def _verdicts(request: Request, report: Report) -> list[tuple[Entry, Verdict | None]]:
    entries = (outcome.entry for outcome in report.outcomes)
    return [(entry, request.store.verdict(entry)) for entry in entries if entry is not None]


def read_request(
    source: Path | None, only: tuple[str, ...], manifest: Path | None, store: LocalStore, options: Mapping[str, Any]
) -> Request:
    """The graphs of a model; source: None for catalogs that need none."""
    if manifest is not None:
        check_target(manifest)
    model = model_source.without_model(only) if source is None else model_source.load(source)
    known = {} if source is None or not source.is_file() or not is_manifest(source) else {source: read_manifest(source)}
    if manifest is not None and manifest.is_file() and manifest not in known:
        known.update(_before(manifest))
    recorded = None if source is None else known.get(source)
    # What is not given is the manifest's.
    names = tuple(catalog.select(only or (recorded.catalogs if recorded else ())))
    defaults: Mapping[str, Any] = recorded.options if recorded else {}
    chosen = chosen_options(names, options, defaults)
    fusion = options["fusion"]
    if fusion is None:
        fusion = (recorded and recorded.fusion) or DEFAULT_FUSION
    listing = catalog.list_graphs(names, model.table, model.config, chosen)
    catalog.check_any_graphs(listing, names)
    if manifest is not None:
        functions = [*catalog.functions(names), *(graph.function for graph in listing.graphs)]
        check_sources(functions, [manifest.absolute().parent])
    return Request(
        model=model,
        catalogs=names,
        options=chosen,
        fusion=fusion,
        listing=listing,
        store=store,
        manifests=tuple(known.values()),
    )


def _before(path: Path) -> dict[Path, Manifest]:
    """The manifest that is written anew; one of another version, or that a merge left broken, tells nothing."""
    try:
        return {path: read_manifest(path)}
    except ManifestError as error:
        report_warning("manifest", f"nothing is taken from what is there: {error.message}")
        return {}


def _build_options(options: Mapping[str, Any]) -> BuildOptions:
    chosen = worker_options(options)
    return replace(chosen, retry=options["retry"], prove=options["proofs"] != "none", reuse=options["reuse"])


def worker_options(options: Mapping[str, Any]) -> BuildOptions:
    """What a command line says of fusion, jobs and limits."""
    memory_gb = options["memory_gb"]
    return BuildOptions(
        fusion=options["fusion"],
        timeout_secs=options["timeout_secs"],
        memory_bytes=None if memory_gb is None else int(memory_gb * 1e9),
        **given(jobs=options["jobs"]),
    )


def _dry_run(request: Request, memo: Memo, manifest: Path | None, as_json: bool, *, reuse: bool) -> int:
    """The plan, and nothing more but a manifest of it. A graph whose program nobody remembers is `unknown`: it would be
    exported first."""
    toolchain = build_parts(request.fusion, memo)
    items = planned(request, toolchain, "best" if reuse else "first")
    if manifest is not None:
        write_request(manifest, request, toolchain, ((item, item.entry) for item in items))
    warn_of_faults(request.store.faults)
    warn_of_troubles(request.store)
    if as_json:
        facts = {"cache": str(request.store.root), "manifest": None if manifest is None else str(manifest)}
        emit_json({**facts, "graphs": [_item_json(item) for item in items]})
        return 0
    emit_table(("state", "graph", "why"), [(item.state, item.graph.name, _why(item)) for item in items])
    if manifest is not None:
        compiled = sum(item.entry is not None for item in items)
        emit_facts([("manifest", f"{manifest}: {compiled} compiled, {len(items) - compiled} planned")])
    return 0


def planned(request: Request, toolchain: Mapping[str, str], choice: Choice) -> list[PlanItem]:
    """What the cache has of the request's graphs, and of what their ways need."""
    return plan(
        request.listing.graphs,
        sources=SourceHashes(WorkTree()),
        programs=request.programs,
        toolchain=toolchain,
        store=request.store,
        choice=choice,
    )


def _why(item: PlanItem) -> str:
    return "; ".join(text for text in (item.reason, item.note) if text)


def _item_json(item: PlanItem) -> dict[str, Any]:
    return {
        "graph": item.graph.name,
        "state": item.state,
        "why": item.reason,
        "way": item.made.name,
        "calls": item.calls,
        "refused": [asdict(each) for each in item.refused],
        "key": item.key and item.key.digest,
        "program": item.program,
    }


def write_request(
    path: Path, request: Request, toolchain: Mapping[str, str], found: Iterable[tuple[PlanItem, Entry | None]]
) -> None:
    """Writes the manifest, and says where it names other bytes than one before did, under the same key."""
    made = _manifest(request, toolchain, found)
    for old in request.manifests:
        for named in other_bytes(old, made.artifacts):
            report_warning("other-bytes", str(named))
    write_manifest(path, made)


def _manifest(
    request: Request, toolchain: Mapping[str, str], found: Iterable[tuple[PlanItem, Entry | None]]
) -> Manifest:
    """Graphs with an entry are compiled in it, others planned."""
    pairs = list(found)
    entries = {item.graph.name: entry for item, entry in pairs if entry is not None}
    programs = {item.graph.name: item.program for item, _ in pairs if item.program is not None}
    return Manifest.of(
        request.model.name,
        config=request.model.config,
        groups=request.model.table.groups(),
        catalogs=request.catalogs,
        options=request.options,
        toolchain=toolchain,
        listing=Listing(tuple(item.graph for item, _ in pairs), request.listing.uses),
        sources={item.graph.name: item.source for item, _ in pairs},
        programs={**programs, **{name: entry.program for name, entry in entries.items()}},
        compiled={name: Compiled.of(entry, request.store.verdict(entry)) for name, entry in entries.items()},
        ways={item.graph.name: item.way for item, _ in pairs},
        refused={item.graph.name: item.refused for item, _ in pairs},
    )


def _as_json(request: Request, report: Report, manifest: str | None) -> dict[str, Any]:
    return {
        "cache": str(request.store.root),
        "model": request.model.name,
        "toolchain": dict(report.toolchain),
        "graphs": [outcome.as_json() for outcome in report.outcomes],
        "faults": [fault.as_json() for fault in request.store.faults],
        "troubles": list(request.store.troubles),
        "manifest": manifest,
        "wall_secs": round(report.wall_secs, 3),
    }


def _show(request: Request, report: Report, manifest: Path | None, written: bool) -> None:
    warn_of_faults(request.store.faults)
    warn_of_troubles(request.store)
    for outcome in report.failed:
        trouble = outcome.trouble
        if trouble is not None:
            again = "worth another try" if trouble.retryable else "the same every time; --retry compiles it again"
            cause = "\n  ".join(printable(line) for line in trouble.cause.strip().splitlines())
            print(f"\nfailed  {outcome.graph.name}: {cause}\n  {again}")
            if trouble.log:
                print(f"  log: {request.store.root / trouble.log}")
    verdicts = _verdicts(request, report)
    for entry, verdict in verdicts:
        if verdict is not None and verdict.state != "proven":
            print(printable(f"{verdict.state}  {entry.graph.name}: {verdict.reason}"))
    if manifest is not None and not written:
        why = f"it would list graphs that {'were not compiled' if report.failed else 'are disproven'}"
        report_warning("manifest", f"{manifest} was not written: {why}")
    entries = [outcome.entry for outcome in report.outcomes if outcome.entry]
    compiled = [outcome.entry.cost for outcome in report.outcomes if outcome.state == "compiled" and outcome.entry]
    size_bytes = sum(entry.size_bytes for entry in entries)
    emit_facts(
        [
            ("toolchain", toolchain_text(report.toolchain)),
            ("cache", str(request.store.root)),
            *([("manifest", str(manifest))] if written else []),
            ("compiled", _compiled_text(compiled)),
            ("failed", count_text(len(report.failed))),
            ("ready", f"{len(entries)} of {len(report.outcomes)}"),
            ("proven", _proven_text([verdict for _, verdict in verdicts])),
            ("took", secs_text(report.wall_secs)),
            ("bytes", f"{count_text(size_bytes)} ({bytes_text(size_bytes)})"),
        ]
    )


def _proven_text(verdicts: Sequence[Verdict | None]) -> str:
    """How many, and what proves the rest."""
    proven, unknown = sum(proof_state(v) == "proven" for v in verdicts), verdicts.count(None)
    return f"{proven} of {len(verdicts)}" + (f"; {unknown} left: graphcache prove" if unknown else "")


def _compiled_text(costs: Sequence[Cost]) -> str:
    """How many, and what they took; what a failed compile took is not recorded."""
    if not costs:
        return "0"
    cpu_secs, peak_bytes = sum(cost.cpu_secs for cost in costs), max(cost.peak_rss_bytes for cost in costs)
    return f"{len(costs)} (CPU {secs_text(cpu_secs)}, at most {bytes_text(peak_bytes)} a worker)"
