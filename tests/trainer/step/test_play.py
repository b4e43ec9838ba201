"""Devices that work at the same time: the same bits, every error in the main thread, signals after the step."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace

import pytest

from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.emulator import EmulatedFlag
from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.runs import losses, settings, train
from tests.trainer.step.placed import OwnFlag, cards, place
from trainer.checkpoint.folder import newest
from trainer.preflight.preflight import Ready
from trainer.run.start import run
from trainer.run.stop import Stopped
from trainer.step.placement import placements
from trainer.step.units import LayerUnit


@pytest.fixture
def config(data, tmp_path):
    model = write_checkpoint(tmp_path / "model", LLAMA | {"num_hidden_layers": 4})
    return settings(model, data, tmp_path / "run", backend="cpu:2", resident_layers=1, steps=2, accum=3)


def test_devices_at_the_same_time_give_the_bits_of_devices_in_turns(config, tmp_path, monkeypatch):
    seen = set()
    forward = LayerUnit.forward

    def watched(self, x, masks):
        seen.add(threading.current_thread().name)
        return forward(self, x, masks)

    monkeypatch.setattr(LayerUnit, "forward", watched)
    cards(monkeypatch, EmulatedFlag())
    in_turns = train(config)
    assert seen == {"MainThread"}
    cards(monkeypatch, OwnFlag(), EmulatedTime(lambda graph: 10_000, link_bytes_per_sec=1e9))
    at_once = train(replace(config, out=tmp_path / "at once"))
    assert seen == {"MainThread", "device-0", "device-1"}
    assert losses(at_once) == losses(in_turns)
    assert newest(config.out / "checkpoints").files == newest(tmp_path / "at once" / "checkpoints").files
    assert [r["device_bytes"] for r in at_once] == [r["device_bytes"] for r in in_turns]


@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_of_either_device_ends_the_step_with_its_own_traceback(config, monkeypatch, failing):
    cards(monkeypatch, OwnFlag())
    backward = LayerUnit.backward

    def broken(self, x, dy, masks):
        if self.name.endswith(str(failing)):
            raise ArithmeticError(f"layer {failing} on {threading.current_thread().name}")
        return backward(self, x, dy, masks)

    monkeypatch.setattr(LayerUnit, "backward", broken)
    with pytest.raises(ArithmeticError, match=rf"layer {failing} on device-\d") as caught:
        run(config)
    assert "broken" in [entry.name for entry in caught.traceback]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("device-")]


def test_an_update_worker_that_dies_ends_the_step(config, monkeypatch):
    cards(monkeypatch, OwnFlag())

    def dies(self, name):
        raise SystemExit(f"no {name}")

    train(replace(config, steps=1))
    monkeypatch.setattr(LayerUnit, "install", dies)
    with pytest.raises(SystemExit, match=r"no .*layernorm|no "):
        run(replace(config, resume=True))


def test_a_signal_in_a_step_ends_the_run_after_it_with_a_checkpoint(config, monkeypatch):
    cards(monkeypatch, OwnFlag())
    backward = LayerUnit.backward

    def signalled(self, x, dy, masks):
        os.kill(os.getpid(), signal.SIGTERM)
        return backward(self, x, dy, masks)

    monkeypatch.setattr(LayerUnit, "backward", signalled)
    with pytest.raises(Stopped) as caught:
        run(config)
    assert caught.value.exit_code == 143
    assert newest(config.out / "checkpoints").step == 1


@pytest.mark.parametrize("flag", [EmulatedFlag(), OwnFlag()], ids=["in turns", "at once"])
@pytest.mark.parametrize(
    "placed",
    [
        *placements(4, 1, 1),
        *(replace(p, on_host=frozenset({0})) for p in placements(4, 1, 1)),
        *placements(4, 2, 1),
        *(replace(p, on_host=frozenset({0, 1})) for p in placements(4, 2, 0)),
    ],
    ids=lambda p: f"{p.devices}-{len(p.groups)}-{sorted(p.on_host)}",
)
def test_emulated_cards_hold_what_the_plan_says_within_2_percent(data, tmp_path, monkeypatch, placed, flag):
    """Sizes of which none is small: a real model's activations are small beside its weights."""
    sizes = {"num_hidden_layers": 4, "hidden_size": 128, "head_dim": 32, "intermediate_size": 320}
    model = write_checkpoint(tmp_path / "model", LLAMA | sizes)
    place(monkeypatch, placed)
    cards(monkeypatch, flag)
    backend = f"cpu:{placed.devices}" if placed.devices > 1 else "cpu"
    config = settings(model, data, tmp_path / "run", backend=backend, resident_layers=placed.resident, accum=3, steps=2)
    held = train(config)[-1]["device_peak_bytes"].values()
    plan = json.loads((config.out / "environment.json").read_text())["memory"]["devices"]
    for most, device in zip(held, plan, strict=True):
        assert 0.98 * device["total_bytes"] <= most <= device["total_bytes"]


def test_calls_json_is_what_the_devices_were_asked_to_do(config, monkeypatch):
    opened: list = []
    cards(monkeypatch, OwnFlag())
    real = Ready.open_devices
    monkeypatch.setattr(Ready, "open_devices", lambda ready: opened.extend(real(ready)) or opened)
    train(replace(config, steps=1))
    described = json.loads((config.out / "calls.json").read_text())["calls"]
    assert described == {device.name: dict(device.calls) for device in opened}
