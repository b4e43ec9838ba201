"""A longer sequence trains on row tiles: artifacts that were compiled for a shorter one. And their self-test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.runs import losses, settings, train
from trainer.config import RunConfig

pytestmark = pytest.mark.compiler

# Those of test_emulator_graphs.py, so that both compile each graph once.
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "head_dim": 32, "intermediate_size": 128}
SHORT, LONG, STEPS = 64, 128, 3
SEES_SEQUENCES = {f"layer.{name}" for name in ("scores", "softmax", "softmax_backward", "attend", "attend_backward")}


def command(*words: str) -> str:
    return subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), LLAMA | SIZES)


@pytest.fixture(scope="module")
def built(model: Path, compiled_cache: Path) -> dict[str, dict[str, Any]]:
    """What the build of the longer sequence gave for each graph, when the cache has all of the shorter one."""
    build = ("cli.main", "build", "--shapes-from", str(model), "--cache", str(compiled_cache))
    command(*build, "--sequence", str(SHORT))
    found = json.loads(command(*build, "--sequence", str(LONG), "--reuse", "--json"))
    return {graph["graph"]: graph for graph in found["graphs"]}


def test_a_longer_sequence_compiles_what_sees_sequences_and_copies_alone(built: dict[str, dict[str, Any]]) -> None:
    tiled = {name for name, graph in built.items() if graph["way"] != name}
    assert any(name.startswith("layer.linear[") for name in tiled)
    assert any(name.startswith("head.chunk_forward[") for name in tiled)
    compiled = {name.partition("[")[0] for name, graph in built.items() if graph["state"] == "compiled"}
    assert compiled <= SEES_SEQUENCES | {"layer.join_rows", "head.join_rows"}


def test_it_trains_on_the_emulator_as_on_the_host(
    model: Path, built: dict[str, dict[str, Any]], compiled_cache: Path, data: Path, tmp_path: Path
) -> None:
    on_cpu = settings(model, data, tmp_path / "cpu", dtype="bfloat16", steps=STEPS, accum=1, seq=LONG)
    wanted = losses(train(on_cpu))
    changed = {"out": tmp_path / "run", "cache": str(compiled_cache), "backend": "emulator"}
    config = RunConfig(**{**vars(on_cpu), **changed})
    assert losses(train(config)) == pytest.approx(wanted, rel=5e-3)
    used = json.loads((config.out / "environment.json").read_text())["graphs"]
    tiled = {graph["graph"].partition("[")[0] for graph in used if graph["way"] != graph["graph"]}
    assert {"layer.linear", "layer.norm_backward", "head.chunk_forward"} <= tiled


@pytest.mark.parametrize("devices", [1, 2])
def test_each_artifact_is_right_on_each_emulated_card(
    model: Path, built: dict[str, dict[str, Any]], compiled_cache: Path, devices: int
) -> None:
    backend = "emulator" if devices == 1 else f"emulator:{devices}"
    words = ("--model", str(model), "--backend", backend, "--seq", str(SHORT), "--cache", str(compiled_cache))
    found = json.loads(command("trainer", "selftest", *words, "--json"))
    results = found["results"] if isinstance(found, dict) else found
    assert len({result["device"] for result in results}) == devices
    assert len(results) >= 20 * devices
    assert [result for result in results if not result["right"]] == []
