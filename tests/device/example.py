"""Small graphs, and artifacts of them from the vendor's compiler, for tests of devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from graphcache.artifact import Artifact
from graphcache.graph import Graph, TensorSpec
from graphcache.key import Key

FUSION = 8


def double(x: Tensor) -> Tensor:
    return x * 2


def sum_and_difference(x: Tensor, y: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    return x + y * scale, x - y * scale


def double_graph(elements: int = 1024, catalog: str = "test") -> Graph:
    spec = TensorSpec("x", "float32", (elements,))
    return Graph(f"double[{elements}]", catalog, f"{__name__}:double", (spec,))


def two_results_graph(elements: int = 8) -> Graph:
    specs = tuple(TensorSpec(name, "float32", (elements,)) for name in ("x", "y"))
    return Graph("two-results", "test", f"{__name__}:sum_and_difference", specs, constants={"scale": 3.0})


def compile_artifact(graph: Graph, scratch: Path, settings: Mapping[str, str] | None = None) -> Artifact:
    """By the vendor's compiler in this process, which must not hold a device. Its key is not a real one."""
    from graphcache.export.program import export
    from graphcache.toolchain.furiosa import FuriosaCompiler

    exported = export(graph)
    compiled = FuriosaCompiler(FUSION, scratch).compile(exported, settings or {})
    key = Key({"program": exported.program, "fusion": str(FUSION)})
    return Artifact(memoryview(compiled.runnable), memoryview(compiled.dfg), graph.args, exported.outputs, key)


def no_artifacts(graph: Graph) -> Artifact:
    raise AssertionError(f"no artifact of {graph.name} is needed here")
