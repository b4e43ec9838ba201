"""How the steps of a run end when a number is not finite: what is saved, what is kept, what is said."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from graphcache.store.files import TEMPORARY
from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.runs import losses, settings, train
from trainer.checkpoint import folder as folder_module
from trainer.checkpoint.finite import NonFiniteStateError
from trainer.checkpoint.folder import complete_steps, newest
from trainer.checkpoint.pretrained import WeightsError
from trainer.data.tokenize import read_tokenizer
from trainer.optim.clip import NonFiniteGradientError
from trainer.run.start import run
from trainer.step.loop import NonFiniteLossError

# Sequences of one step each; only the bad one's loss is finite and its gradients are not.
SEQUENCES, BAD = 6, 3


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A model whose norm has nothing to divide by but 1e-38 where all tokens are `z`."""
    model = write_checkpoint(tmp_path / "model", LLAMA | {"rms_norm_eps": 1e-38})
    tensors = load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"][read_tokenizer(model).tokenizer.encode("z").ids[0]] = 0
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    texts = ["abcdefgh" * 8] * SEQUENCES
    texts[BAD] = "z" * 64
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def bad_step(model: Path, data: Path, out: Path) -> int:
    """The step whose update overflows: the loss of the next one is not finite."""
    with pytest.raises(NonFiniteGradientError, match=r"the norm of the gradients is (nan|inf) in step \d+") as found:
        run(settings(model, data, out, accum=1, steps=20, seq=32, clip_norm=1.0))
    return int(str(found.value).rpartition(" in step ")[2].partition(",")[0])


def test_steps_before_gradients_that_are_not_finite_are_saved(overflowing, data, tmp_path):
    bad = bad_step(overflowing, data, tmp_path / "run")
    assert bad > 1
    assert newest(tmp_path / "run" / "checkpoints").step == bad - 1
    good = settings(overflowing, data, tmp_path / "good", accum=1, steps=bad - 1, seq=32, clip_norm=1.0)
    assert losses(train(good)) == [
        json.loads(line)["loss"] for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    ]


def test_weights_that_an_update_made_infinite_displace_no_checkpoint(overflowing, data, tmp_path):
    bad = bad_step(overflowing, data, tmp_path / "clipped")
    config = settings(overflowing, data, tmp_path / "run", accum=1, steps=20, seq=32, save_every=1, keep=1)
    with pytest.raises(NonFiniteStateError, match=r"master holds numbers that are not finite"):
        run(config)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert complete_steps(checkpoints) == [bad - 1]
    assert all(math.isfinite(t.sum()) for t in load_file(newest(checkpoints).folder / "model.safetensors").values())


def test_the_update_is_blamed_for_the_next_steps_loss_and_not_its_data(overflowing, data, tmp_path):
    bad = bad_step(overflowing, data, tmp_path / "clipped")
    # Nothing was to be saved before the step that meets the weights.
    with pytest.raises(NonFiniteStateError) as found:
        run(settings(overflowing, data, tmp_path / "run", accum=1, steps=20, seq=32))
    assert isinstance(found.value.__context__, NonFiniteLossError)
    assert f"step {bad + 1}" in str(found.value.__context__)
    assert complete_steps(tmp_path / "run" / "checkpoints") == []


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_model_whose_weights_are_not_finite_is_refused(tmp_path, data, number):
    model = write_checkpoint(tmp_path / "model", LLAMA, dtype=torch.bfloat16)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = number
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.mlp\.down_proj\.weight holds numbers"):
        run(settings(model, data, tmp_path / "run"))


def test_what_could_not_be_deleted_is_said_and_ends_nothing(llama, data, tmp_path, monkeypatch, capsys):
    real = folder_module.shutil.rmtree

    def busy(path, *args, **kwargs):
        if Path(path).name == "step-00000001":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, *args, **kwargs)

    monkeypatch.setattr(folder_module.shutil, "rmtree", busy)
    run(settings(llama, data, tmp_path / "run", save_every=1, keep=1, steps=3, seq=32))
    assert complete_steps(tmp_path / "run" / "checkpoints") == [3]
    assert "step-00000001 could not be deleted: Device or resource busy" in capsys.readouterr().err


def test_what_a_killed_run_left_is_deleted_when_training_goes_on(llama, data, tmp_path):
    checkpoints = tmp_path / "run" / "checkpoints"
    run(settings(llama, data, tmp_path / "run", steps=2, seq=32))
    (checkpoints / f"{TEMPORARY}{'0a' * 8}").mkdir()
    (checkpoints / "step-00000001").mkdir()  # of which the marker was deleted
    run(settings(llama, data, tmp_path / "run", steps=3, seq=32, resume=True))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000002", "step-00000003"]


def test_nothing_to_do_tells_of_the_steps_that_are_saved(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", steps=5, save_every=3, seq=32)
    summary = run(config)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000005")  # as if killed before it was saved
    again = run(settings(llama, data, tmp_path / "run", steps=3, seq=32, resume=True))
    assert (summary["steps"], again["steps"]) == (5, 3)
    assert again["checkpoint"].endswith("step-00000003")
