"""The plan against what a run really holds, counted by the cpu backend."""

from __future__ import annotations

import pytest

from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from tests.trainer.runs import settings, train
from trainer.model.config import ModelConfig
from trainer.step.memory import plan_memory
from trainer.step.placement import place


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("accum", [1, 3])
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (QWEN2, {}),
        (LLAMA, {"dtype": "bfloat16", "seq": 96}),
        (QWEN2, {"vocab_size": 20_000, "seq": 64}),
        (LLAMA, {"hidden_size": 128, "head_dim": 32, "intermediate_size": 300}),
    ],
    ids=["tiny", "long", "vocabulary", "wide"],
)
def test_the_plan_is_the_most_that_a_run_holds(kind, sizes, accum, devices, data, tmp_path):
    run = {name: value for name, value in sizes.items() if name in ("dtype", "seq")}
    json = kind | {name: value for name, value in sizes.items() if name not in run}
    model = write_checkpoint(tmp_path / "model", json)
    config = settings(model, data, tmp_path / "run", steps=2, accum=accum, backend=f"cpu:{devices}", **run)
    held = train(config)[-1]["device_peak_bytes"].values()
    parsed = ModelConfig.from_json(json)
    planned = [plan.total_bytes for plan in plan_memory(parsed, config, place(parsed.layers, devices, 0)).devices]
    for most, plan in zip(held, planned, strict=True):
        assert most <= plan <= 1.6 * most


def test_resident_layers_move_state_from_the_host_to_the_device(data, tmp_path):
    model = ModelConfig.from_json(LLAMA)
    config = settings(tmp_path, data, tmp_path / "run")
    offload, resident = (plan_memory(model, config, place(model.layers, 1, n)) for n in (0, 2))
    moved = offload.host_bytes - resident.host_bytes
    assert moved == resident.devices[0].state > 0
    assert offload.devices[0].state == 0
