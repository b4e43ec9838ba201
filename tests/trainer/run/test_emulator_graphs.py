"""Training with nothing eager on the device: every graph is a cached artifact, run by the vendor's own lowering."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from tests.trainer.runs import losses, records, settings, train
from trainer.config import RunConfig

pytestmark = pytest.mark.compiler

LAYERS, STEPS, SEQ = 2, 10, 64
# As small as the compiler takes with the settings of real models.
SIZES = {"num_hidden_layers": LAYERS, "hidden_size": 64, "head_dim": 32, "intermediate_size": 128}


@pytest.fixture(scope="module", params=[(LLAMA, 2), (QWEN2, 1)], ids=["llama", "qwen2"])
def kind(request) -> tuple[dict[str, Any], int]:
    """A config, and the micro-batches in a step: gradients are added up from two on."""
    return request.param


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), kind[0] | SIZES)


@pytest.fixture(scope="module")
def cache(model, compiled_cache) -> Path:
    """A cache with all graphs of the tiny model."""
    command = [sys.executable, "-m", "cli.main", "build", "--shapes-from", str(model), "--sequence", str(SEQ)]
    subprocess.run([*command, "--cache", str(compiled_cache)], check=True)
    return compiled_cache


@pytest.fixture(scope="module")
def on_cpu(kind, model, data, tmp_path_factory) -> RunConfig:
    out = tmp_path_factory.mktemp("cpu") / "run"
    config = settings(model, data, out, dtype="bfloat16", steps=STEPS, accum=kind[1], seq=SEQ)
    train(config)
    return config


@pytest.mark.parametrize("resident", [0, LAYERS], ids=["offload", "resident"])
def test_10_steps_from_artifacts_alone(model, data, cache, on_cpu, resident, tmp_path):
    changed = {"out": tmp_path / "run", "cache": str(cache), "backend": "emulator", "resident_layers": resident}
    config = RunConfig(**{**vars(on_cpu), **changed})
    assert losses(train(config)) == pytest.approx(losses(records(on_cpu.out)), rel=5e-3)

    by_graph = json.loads((config.out / "calls.json").read_text())["calls"]["emulator"]
    print(f"{sum(by_graph.values())} device calls a step: {by_graph}")
    used = json.loads((config.out / "environment.json").read_text())["graphs"]
    assert set(by_graph) <= {graph["way"] for graph in used}
    calls: Counter[str] = Counter()
    for graph, count in by_graph.items():
        calls[graph.partition("[")[0]] += count
    accum = on_cpu.accum
    # Twice a micro-batch, in forward and in its recomputation; a gradient is added to from the second one on.
    assert calls["layer.softmax"] == 2 * LAYERS * accum
    assert calls["layer.norm_backward"] == 2 * LAYERS * accum
    assert calls["head.chunk_forward"] == accum
    assert calls.get("head.chunk_add", 0) == accum - 1
    # Seven matrices a layer, each of one tile, to four weights on the device.
    assert calls["tiles.cast"] == 7 * LAYERS
    assert calls["adamw"] == 7 * resident
    assert calls["tiles.join"] == 4 * resident
