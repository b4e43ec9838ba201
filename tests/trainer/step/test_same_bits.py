"""Whatever the groups, the devices and where inputs wait: the bits of one micro-batch after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from tests.trainer.runs import losses, settings, train, write_data
from tests.trainer.step import micro_batch_order
from tests.trainer.step.placed import place
from trainer.checkpoint.folder import newest
from trainer.step.placement import Placement, placements
from trainer.step.play import StepPlay

LAYERS = 5
PLACEMENTS = [
    *placements(LAYERS, 1, 0),
    *(replace(p, on_host=frozenset({0})) for p in placements(LAYERS, 1, 2)),
    *placements(LAYERS, 2, 1),
    *(replace(p, on_host=frozenset({1})) for p in placements(LAYERS, 2, 0)),
    *placements(LAYERS, 5, 1),
]


def named(placed: Placement) -> str:
    return f"{placed.devices} devices, {len(placed.groups)} groups, {sorted(placed.on_host)} on the host"


@pytest.fixture(
    scope="module", params=[(LLAMA, 1, 2), (LLAMA, 4, 5), (QWEN2, 3, 4)], ids=["untied-1", "untied-4", "tied-3"]
)
def reference(request, tmp_path_factory):
    """A pass over the data in the old order; its last step has fewer micro-batches. And its settings."""
    json, accum, documents = request.param
    folder = tmp_path_factory.mktemp("reference")
    model = write_checkpoint(folder / "model", json | {"num_hidden_layers": LAYERS})
    data = write_data(folder / "data.jsonl", documents=documents)
    config = settings(model, data, folder / "run", steps=None, accum=accum, dtype="bfloat16", clip_norm=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepPlay, "run", micro_batch_order.run)
        done = train(config)
    tokens = {record["tokens"] for record in done}
    assert accum == 1 or len(tokens) > 1, "the last step has fewer micro-batches"
    return config, done


@pytest.mark.parametrize("placed", PLACEMENTS, ids=named)
def test_a_pass_over_the_data_is_the_same_in_any_order(reference, placed, tmp_path, monkeypatch):
    config, expected = reference

    place(monkeypatch, placed)
    name = f"cpu:{placed.devices}" if placed.devices > 1 else "cpu"
    again = replace(config, out=tmp_path / "run", backend=name, resident_layers=placed.resident)
    assert losses(train(again)) == losses(expected)
    one, other = (newest(out / "checkpoints") for out in (config.out, again.out))
    assert one.files == other.files
