"""A small project with a package of graphs, a catalog, a manifest and a filled cache, in a git repository.

Everything but the compiler is real. `FakeExporter` stands for torch: a function's program is what it computes, so an
edit that computes the same is the same program.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphcache import catalog
from graphcache.catalog import CatalogOptions
from graphcache.errors import GraphcacheError
from graphcache.export.client import ExportingError
from graphcache.graph import Graph
from graphcache.header.table import TensorGroup, TensorTable
from graphcache.key import Key
from graphcache.manifest.file import read_manifest, write_manifest
from graphcache.manifest.manifest import Compiled, Manifest
from graphcache.source.hash import SourceHashes
from graphcache.source.tree import WorkTree
from graphcache.store.base import Cost, Facts
from graphcache.store.local import LocalStore
from graphcache.store.programs import Answer, Programs
from tests.store.fakes import TOOLCHAIN, fake_artifact

GRAPHS = '''"""Graphs."""

from demo_graphs.numbers import FACTOR


def step(x, *, eps=1e-6):
    return double(x) * FACTOR + eps


def double(x):
    return x + x


def norm(x):
    return x - 1
'''
NUMBERS = "FACTOR = 3.0\n"
CATALOG = """
from graphcache.graph import Graph, Listing, TensorSpec, Use

SETTINGS = {"tactic": "compute-bound"}


def catalog(table, config, options):
    sizes = sorted({min(tensor.elements, options.tile_elements) for tensor in table})
    graphs = [graph("step", size, eps=config["eps"]) for size in sizes] + [graph("norm", 8)]
    return Listing(tuple(graphs), tuple(Use(each.name, "weights", 1, 1) for each in graphs))


def graph(function, size, **constants):
    spec = TensorSpec("x", options_dtype, (size,))
    name = f"demo_graphs.graphs:{function}"
    return Graph(f"{function}[{size}]", "demo", name, (spec,), constants=constants, settings=SETTINGS)


options_dtype = "float32"
"""
RECOMMENDED = {"tactic": "io-bound"}
GROUPS = (
    TensorGroup(pattern="layers.{}.small", indices="0-3", dtype="BF16", shape=(4, 8), size_bytes=64),
    TensorGroup(pattern="layers.{}.large", indices="0-3", dtype="BF16", shape=(16, 8), size_bytes=256),
)
CHOSEN = {**TOOLCHAIN, "fusion": "8", "mesh": "single"}


class FakeExporter:
    """Programs by running functions on a number. `asked` are the graphs of each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[list[str]] = []

    def __call__(self, graphs: Sequence[Graph]) -> list[Answer | GraphcacheError]:
        self.asked.append([graph.name for graph in graphs])
        found = [self.program(graph) for graph in graphs]
        return [Answer(each, RECOMMENDED) if isinstance(each, str) else each for each in found]

    def program(self, graph: Graph) -> str | GraphcacheError:
        values: dict[str, Any] = {}
        for name in ("numbers.py", "graphs.py"):
            text = (self.folder / "demo_graphs" / name).read_text()
            kept = [line for line in text.splitlines() if not line.startswith("from demo_graphs")]
            exec("\n".join(kept), values)
        try:
            result = values[graph.function.partition(":")[2]](7.0, **graph.constants)
        except Exception as error:
            return ExportingError(f"{graph.name} cannot be exported: {error}")
        return hashlib.sha256(f"{result} {graph.signature_digest()}".encode()).hexdigest()


class Project:
    """The project in `folder`, whose `src` and `installed` folders have to be importable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "src" / "demo_graphs"
        self.manifest = folder / "cache_manifests" / "demo.json"
        self.store = LocalStore(folder / "cache")
        self.export = FakeExporter(folder / "src")
        self.package.mkdir(parents=True)
        for name, text in (("__init__", ""), ("graphs", GRAPHS), ("numbers", NUMBERS), ("catalog", CATALOG)):
            (self.package / f"{name}.py").write_text(text)
        info = folder / "installed" / "demo_graphs-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo_graphs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[graphcache.catalogs]\ndemo = demo_graphs.catalog:catalog\n")
        (folder / ".gitignore").write_text("cache/\n__pycache__/\n")

    @property
    def import_path(self) -> list[str]:
        return [str(self.folder / "src"), str(self.folder / "installed")]

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.package / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.forget_modules()

    def forget_modules(self) -> None:
        """Lets the next import read the files again."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "demo_graphs"]:
            del sys.modules[name]
        # A cached file is taken for current by its whole second and size.
        shutil.rmtree(self.package / "__pycache__", ignore_errors=True)

    def list_graphs(self, options: CatalogOptions) -> Any:
        return catalog.list_graphs(["demo"], TensorTable.from_groups(GROUPS), {"eps": 1e-6}, options)

    def build(
        self,
        options: CatalogOptions | None = None,
        *,
        planned: Sequence[str] = (),
        store: bool = True,
        **toolchain: str,
    ) -> None:
        """Writes the manifest of now, and fills the cache with what it lists."""
        chosen = options or CatalogOptions()
        listing = self.list_graphs(chosen)
        sources = {graph.name: SourceHashes(WorkTree()).of(graph.function) for graph in listing.graphs}
        parts = {**CHOSEN, **{name.replace("_", "-"): value for name, value in toolchain.items()}}
        programs, compiled = {}, {}
        for number, graph in enumerate(listing.graphs):
            program = self.export.program(graph)
            assert isinstance(program, str)
            programs[graph.name] = program
            Programs(self.store.root).remember(sources[graph.name].digest, graph, parts["torch"], program)
            if graph.name not in planned:
                key = Key.of(program, parts, graph.settings)
                facts = Facts(graph, Cost(2.0 + number, 1.5, 1 << 30), 1000)
                compiled[graph.name] = Compiled.of(self.store.commit(key, fake_artifact(key), facts))
                if not store:
                    self.store.layout.entry(key).unlink()
        write_manifest(
            self.manifest,
            Manifest.of(
                "demo",
                config={"eps": 1e-6},
                groups=GROUPS,
                catalogs=["demo"],
                options=chosen,
                toolchain=parts,
                listing=listing,
                sources=sources,
                programs=programs,
                compiled=compiled,
            ),
        )

    def commit(self, message: str = "a commit") -> str:
        if not (self.folder / ".git").exists():
            self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *args: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *identity, *args]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def recorded(self) -> Manifest:
        return read_manifest(self.manifest)


def states(printed: str) -> dict[str, tuple[str, list[str]]]:
    """State and reasons by graph, from what `diff --json` printed."""
    value = json.loads(printed)
    return {g["graph"]: (g["state"], g["reasons"]) for manifest in value["manifests"] for g in manifest["graphs"]}
