from __future__ import annotations

import weakref

import pytest
import torch

from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.runs import settings
from trainer.checkpoint.pretrained import InputCheckpoint, expected_shapes
from trainer.device.cpu import CpuBackend
from trainer.optim.adamw import open_optimizer
from trainer.run.load import build_network, initial_state, load_weights
from trainer.step.choose import choose_step


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_every_tensor_is_read_once_and_let_go_before_the_next_unit(kind, data, tmp_path, request, monkeypatch):
    """The checkpoint's own bfloat16 tensors: what stays is the float32 master and the device's copy."""
    folder = write_checkpoint(tmp_path / "model", LLAMA | _config(request, kind), dtype=torch.bfloat16)
    checkpoint = InputCheckpoint(folder)
    read, alive, most = InputCheckpoint.read, [], []
    names = []

    def recorded(self, name):
        most.append(sum(reference() is not None for reference in alive))
        tensor = read(self, name)
        names.append(name)
        alive.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(InputCheckpoint, "read", recorded)
    config = settings(folder, data, tmp_path / "run", dtype="bfloat16")
    device, optimizer = CpuBackend(), open_optimizer(config)
    step, _ = choose_step(checkpoint.config, config, 1, micro_batches=2, pool_bytes=None)
    network = build_network(step, [device])
    load_weights(network, optimizer, initial_state(checkpoint))
    optimizer.close()
    assert sorted(names) == sorted(expected_shapes(checkpoint.config))
    assert max(most) <= 1


def _config(request, kind):
    return InputCheckpoint(request.getfixturevalue(kind)).config_json
