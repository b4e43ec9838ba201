"""A large cache against a small one, many checkpoints in one run, many readers, many artifacts to S3, a dead remote.

The caches hold made-up artifacts; commands run in this process, so that starting Python hides nothing. The tests' fake
worker compiles what a build needs. GRAPHCACHE_BENCH_PUSHED sets how many artifacts are pushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphcache import catalog
from graphcache.catalog import CatalogOptions
from graphcache.header.table import TensorGroup, TensorTable
from graphcache.plan import plan
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Entry, Object
from graphcache.store.local import LocalStore
from graphcache.store.programs import Programs
from tests.bench.measure import Result, paired, timed
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_facts, fake_key
from tests.store.processes import finish, start
from tests.support import pod
from tests.support.servers import make_bucket, s3_environment, s3_server

SMALL, LARGE = 1_000, 100_000
READERS, LOOKUPS = 32, 100
CHECKPOINTS = 1_000
PUSHED = int(os.environ.get("GRAPHCACHE_BENCH_PUSHED", "10000"))
ROUNDS = 5
MANIFEST = "cache_manifests/smollm2-135m-adamw.json"


def measure() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as work, environment(COMPILES=f"{work}/compiles", XDG=work):
        pod.install(Path(work, "installed"))
        with importable(Path(work, "installed")), pod.made_up():
            small, large = (fill(Path(work, str(count)), count) for count in (SMALL, LARGE))
            yield from _sizes(small, large)
            yield _readers(large)
            yield from _dead_remote(small)
        yield _checkpoints()
        yield _push(Path(work))


def fill(root: Path, count: int) -> LocalStore:
    """A store with so many pairs, written without a sync, and with what a build of the pods' catalog makes."""
    store = LocalStore(root)
    for number in range(count):
        key = fake_key(number)
        data = fake_artifact(key)
        entry = Entry(key, Object.of(data), fake_facts(f"fake[{number}]"), "2026-11-25T00:00:00Z")
        pairs = ((store.layout.object(entry.object.sha256), data), (store.layout.entry(key), entry.encode()))
        for path, content in pairs:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    root.chmod(0o700)
    command("build", "--shapes-from", MANIFEST, "--only", pod.CATALOG, "--cache", str(root), expect=(4,))
    return store


def command(*words: str, expect: tuple[int, ...] = (0,)) -> None:
    from cli.main import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = run(words)
    if code not in expect:
        raise RuntimeError(f"{words}: exit code {code}: {said.getvalue()}")


def _sizes(small: LocalStore, large: LocalStore) -> Iterator[Result]:
    numbers = random.Random(0).sample(range(SMALL), LOOKUPS)

    def look_up(store: LocalStore) -> float:
        fresh = LocalStore(store.root)
        return timed(lambda: [fresh.lookup(fake_key(number)) for number in numbers])

    def of(*words: str, expect: tuple[int, ...] = (0,)) -> Callable[[LocalStore], float]:
        return lambda store: timed(lambda: command(*words, "--cache", str(store.root), expect=expect))

    # With nothing to do: the one graph without an artifact is refused, and not tried again.
    build = of("build", "--shapes-from", MANIFEST, "--only", pod.CATALOG, expect=(4,))
    linear = LARGE / SMALL
    for name, run, aim in (
        (f"look-up, {LARGE:,} entries against {SMALL:,}", look_up, 2.0),
        ("build with nothing to do", build, 2.0),
        ("diff", of("diff", "--manifest", MANIFEST, expect=(0, 1)), 1.2),
        (f"ls, per entry (x{linear:.0f} is linear)", of("ls", "--json"), 1.2 * linear),
        (f"gc, per entry (x{linear:.0f} is linear)", of("gc", "--max-size", "1MB", "--json"), 1.2 * linear),
    ):
        if aim > linear:
            # Minutes: once.
            little, big = run(small), run(large)
        else:
            big, little = paired(lambda run=run: run(large), lambda run=run: run(small), ROUNDS)  # type: ignore[misc]
        yield Result(name, big / little, aim, True, f"{big:.4f} s against {little:.4f} s")


def _readers(store: LocalStore) -> Result:
    """Processes that look up at the same time, against one that does all of it."""

    def read(times: int) -> None:
        chance = random.Random(os.getpid())
        fresh = LocalStore(store.root)
        for _ in range(times):
            if fresh.lookup(fake_key(chance.randrange(LARGE))) is None:
                raise AssertionError(fresh.faults)

    def many() -> None:
        children = [start(lambda: read(LOOKUPS)) for _ in range(READERS)]
        if sum(finish(child) for child in children):
            raise AssertionError("a reader failed")

    together = timed(many)
    alone = timed(lambda: finish(start(lambda: read(READERS * LOOKUPS))))
    return Result(f"{READERS} readers at once against one for all", together / alone, 1.0, True, f"{together:.3f} s")


def _dead_remote(store: LocalStore) -> Iterator[Result]:
    """All found here: what a remote that never answers adds."""
    words = ("build", "--shapes-from", MANIFEST, "--only", pod.WHOLE, "--cache", str(store.root))
    dead = ("--remote", "s3://nobody/cache")
    with environment(**s3_environment(9)):
        pairs = [(timed(lambda: command(*words, *dead)), timed(lambda: command(*words))) for _ in range(60)]
    with_, without = (statistics.median(times) for times in zip(*pairs, strict=True))
    yield Result("local hits with a dead remote", with_ / without, 1.02, True, f"{with_:.4f} s against {without:.4f} s")


def _checkpoints() -> Result:
    """Time of a checkpoint when many are planned in one run, against a tenth as many."""

    def planned(count: int) -> float:
        with tempfile.TemporaryDirectory() as root:
            store, sources = LocalStore(root), SourceHashes(WorkTree())
            programs = Programs(store.root)

            def one(number: int) -> None:
                rows = 64 + number
                size = {"shape": (rows, 576), "size_bytes": 2 * 576 * rows}
                groups = [TensorGroup(pattern="layers.{}.w", indices="0-29", dtype="BF16", **size)]
                graphs = catalog.list_graphs(["adamw"], TensorTable.from_groups(groups), None, CatalogOptions()).graphs
                plan(graphs, sources=sources, programs=programs, toolchain=TOOLCHAIN, store=store)

            return timed(lambda: [one(number) for number in range(count)]) / count

    many, few = paired(lambda: planned(CHECKPOINTS), lambda: planned(CHECKPOINTS // 10), 3)
    detail = f"{many * CHECKPOINTS:.2f} s for {CHECKPOINTS:,}"
    return Result(f"a checkpoint's plan among {CHECKPOINTS:,}, against 100", many / few, 1.2, True, detail)


def _push(work: Path) -> Result:
    """Our push of so many artifacts, against the client library's puts of the same bytes, as many at a time."""
    from graphcache.remote.files import open_files
    from graphcache.remote.object_store import CONCURRENCY
    from graphcache.remote.push import push
    from graphcache.remote.tier import Tier
    from graphcache.remote.url import parse

    store = LocalStore(work / "push")
    entries = [store.commit(fake_key(n), fake_artifact(fake_key(n)), fake_facts(f"f[{n}]")) for n in range(PUSHED)]
    with s3_server() as port, environment(**s3_environment(port)):
        tier = Tier(open_files(parse(make_bucket(port, "ours"))))
        make_bucket(port, "theirs")
        bodies = [(f"cache/objects/{e.object.sha256}", store.layout.object(e.object.sha256)) for e in entries]
        bodies += [(f"cache/entries/{e.key.digest}", store.layout.entry(e.key)) for e in entries]
        theirs = timed(lambda: asyncio.run(_put_all(bodies, CONCURRENCY)))
        ours = timed(lambda: tier.files.run(push(tier, store, entries)))
    detail = f"{ours:.1f} s against {theirs:.1f} s"
    return Result(f"push of {PUSHED:,} artifacts to S3", ours / theirs, 2.0, True, detail)


async def _put_all(bodies: list[tuple[str, Path]], concurrency: int) -> None:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    slots = asyncio.Semaphore(concurrency)
    async with AioSession().create_client("s3", config=AioConfig(max_pool_connections=concurrency)) as client:

        async def put(key: str, path: Path) -> None:
            async with slots:
                await client.put_object(Bucket="theirs", Key=key, Body=path.read_bytes())

        await asyncio.gather(*(put(*each) for each in bodies))


@contextlib.contextmanager
def environment(**values: Any) -> Iterator[None]:
    """COMPILES and XDG stand for the longer names of the variables."""
    names = {"COMPILES": "FAKE_COMPILES", "XDG": "XDG_CACHE_HOME"}
    wanted: Mapping[str, str] = {names.get(name, name): str(value) for name, value in values.items()}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    import sys

    sys.path.insert(0, str(folder))
    forget = getattr(catalog._installed, "cache_clear", lambda: None)
    forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget()
