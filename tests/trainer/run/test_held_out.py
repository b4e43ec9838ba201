"""Loss on held-out data, and the checkpoint that has the lowest."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.runs import losses, records, settings, train, whole_batch_loss, write_data
from trainer.checkpoint.folder import complete_steps, folder_name
from trainer.config import ConfigError
from trainer.data.corpus import Corpus
from trainer.data.kept_tokens import tokens_of
from trainer.run import held_out
from trainer.run.start import run
from trainer.run.stop import Stopped
from trainer.step.loop import NonFiniteLossError


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("held") / "held.jsonl", documents=17)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Text that a model does worse on the longer it learns other text."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.jsonl"
    path.write_text("".join(json.dumps({"text": word * 20}) + "\n" for word in ("XYZ", "QQW", "123", "#!%")))
    return path


def evaluations(out):
    return {record["step"]: record["eval_loss"] for record in records(out) if "eval_loss" in record}


@pytest.mark.parametrize(("kind", "micro_batch"), [("llama", 1), ("qwen2", 3)])
def test_the_loss_is_that_of_transformers_on_the_same_checkpoint(kind, micro_batch, data, held, tmp_path, request):
    model, out = request.getfixturevalue(kind), tmp_path / "run"
    common = {"steps": 5, "eval_every": 2, "save_every": 1, "keep": 9, "micro_batch": micro_batch}
    summary = run(settings(model, data, out, eval_data=held, **common))
    found = evaluations(out)
    assert list(found) == [2, 4, 5]
    corpus = Corpus(tokens_of(held, model, (), None, print), seq=32)
    batches = list(corpus.in_order(micro_batch))
    for step, loss in found.items():
        saved = AutoModelForCausalLM.from_pretrained(out / "checkpoints" / folder_name(step), dtype=torch.float32)
        with torch.no_grad():
            assert loss == pytest.approx(whole_batch_loss(saved, batches).item(), rel=1e-5)
    lowest = min(found, key=lambda step: found[step])
    assert (summary["last_eval_loss"], summary["lowest_eval_loss"]) == (found[5], found[lowest])
    assert summary["lowest_eval_step"] == lowest
    prometheus = (out / "metrics.prom").read_text()
    assert f"graphcache_trainer_eval_loss {found[5]}" in prometheus


def test_training_is_the_same_with_it_and_nothing_stays_on_the_device(llama, data, held, tmp_path):
    without = train(settings(llama, data, tmp_path / "without", steps=4))
    with_it = train(settings(llama, data, tmp_path / "with", steps=4, eval_data=held, eval_every=1))
    assert losses(with_it) == losses(without)
    assert [r["device_bytes"] for r in with_it] == [r["device_bytes"] for r in without]
    assert with_it[-1]["device_peak_bytes"] == without[-1]["device_peak_bytes"]


def test_two_devices_measure_what_one_does(llama, data, held, tmp_path):
    for devices in ("cpu", "cpu:2"):
        train(settings(llama, data, tmp_path / devices, steps=2, eval_data=held, backend=devices))
    assert evaluations(tmp_path / "cpu") == evaluations(tmp_path / "cpu:2")


def test_best_keeps_the_checkpoint_with_the_lowest_loss_also_across_a_resume(llama, data, foreign, tmp_path):
    out, common = tmp_path / "run", {"eval_data": foreign, "eval_every": 1, "keep": 1, "best": True, "lr": 0.02}
    train(settings(llama, data, out, steps=4, **common))
    found = evaluations(out)
    assert min(found, key=lambda step: found[step]) == 1, "the data are meant to grow worse"
    assert complete_steps(out / "checkpoints") == [1, 4]
    train(settings(llama, data, out, steps=6, resume=True, **common))
    assert complete_steps(out / "checkpoints") == [1, 6]
    straight = tmp_path / "straight"
    train(settings(llama, data, straight, steps=6, **common))
    assert evaluations(out) == evaluations(straight)


def test_without_best_the_lowest_is_not_kept(llama, data, foreign, tmp_path):
    out = tmp_path / "run"
    train(settings(llama, data, out, steps=3, eval_data=foreign, eval_every=1, keep=1, save_every=1, lr=0.02))
    assert complete_steps(out / "checkpoints") == [3]


def test_losses_on_other_held_out_data_are_not_compared(llama, data, foreign, held, tmp_path):
    """Step 1 has the lowest loss on the first file; on the second one the first evaluation begins anew."""
    out, common = tmp_path / "run", {"eval_every": 1, "keep": 1, "best": True, "lr": 0.02}
    train(settings(llama, data, out, steps=2, eval_data=foreign, **common))
    assert complete_steps(out / "checkpoints") == [1, 2]
    train(settings(llama, data, out, steps=4, eval_data=held, resume=True, **common))
    on_held = {step: loss for step, loss in evaluations(out).items() if step > 2}
    assert complete_steps(out / "checkpoints") == sorted({min(on_held, key=lambda step: on_held[step]), 4})


@pytest.mark.parametrize(("steps", "more"), [(2, 2), (2, 4)])
def test_an_evaluation_that_a_signal_interrupts_is_made_up_for(
    llama, data, foreign, tmp_path, monkeypatch, steps, more
):
    """Also where no step is left. The run ends as one that was never interrupted, the best checkpoint included."""
    common = {"eval_data": foreign, "eval_every": 2, "best": True, "keep": 1, "lr": 0.02}
    real = held_out.held_out_loss

    def interrupted(*args, stopped, **others):
        signal.raise_signal(signal.SIGTERM)
        return real(*args, stopped=stopped, **others)

    out, straight = tmp_path / "run", tmp_path / "straight"
    with monkeypatch.context() as patched:
        patched.setattr(held_out, "held_out_loss", interrupted)
        for resume in (False, True):  # a second time while it is made up for
            with pytest.raises(Stopped):
                run(settings(llama, data, out, steps=steps, resume=resume, **common))
            assert evaluations(out) == {}
            assert complete_steps(out / "checkpoints") == [steps]
    summary = run(settings(llama, data, out, steps=more, resume=True, **common))
    run(settings(llama, data, straight, steps=more, **common))
    assert evaluations(out) == evaluations(straight)
    assert summary["lowest_eval_step"] == 2
    assert complete_steps(out / "checkpoints") == complete_steps(straight / "checkpoints")
    assert summary["checkpoint"] == str(out / "checkpoints" / folder_name(more))
    assert f"graphcache_trainer_eval_loss {evaluations(out)[more]}" in (out / "metrics.prom").read_text()
    assert losses(records(out)) == losses(records(straight))
    again = run(settings(llama, data, out, steps=more, resume=True, **common))
    assert again["lowest_eval_step"] == 2


def test_a_loss_that_is_not_finite_ends_the_run(llama, data, held, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.step.evaluate._loss", lambda network, batch: float("nan"))
    out = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match="held-out loss after step 2 is nan on sequence 1 "):
        run(settings(llama, data, out, steps=3, eval_data=held, eval_every=2))
    assert complete_steps(out / "checkpoints") == [2], "the step itself was good"
    assert [record["step"] for record in records(out)] == [1, 2]


def test_settings_without_held_out_data_are_refused(llama, data, tmp_path):
    with pytest.raises(ConfigError, match="--eval-every needs --eval-data; --best needs --eval-data"):
        settings(llama, data, tmp_path / "run", eval_every=1, best=True)


def test_the_training_data_as_held_out_data_is_a_warning(llama, data, tmp_path, capsys):
    run(settings(llama, data, tmp_path / "run", steps=1, eval_data=data))
    assert "--eval-data has the tokens of --data" in capsys.readouterr().err


def test_a_resume_without_best_would_delete_the_best_and_is_refused(llama, data, foreign, tmp_path):
    out, common = tmp_path / "run", {"eval_every": 1, "keep": 1, "lr": 0.02}
    train(settings(llama, data, out, steps=3, eval_data=foreign, best=True, **common))
    for others in ({"eval_data": foreign}, {"eval_every": None}):
        with pytest.raises(ConfigError, match="--best was given and is not"):
            run(settings(llama, data, out, steps=4, resume=True, **{**common, **others}))
    assert complete_steps(out / "checkpoints") == [1, 3]
    run(settings(llama, data, out, steps=4, resume=True, eval_data=foreign, best=True, **common))
    assert complete_steps(out / "checkpoints") == [1, 4]


def test_best_may_be_asked_for_on_a_resume(llama, data, foreign, tmp_path):
    out, common = tmp_path / "run", {"eval_data": foreign, "eval_every": 1, "keep": 1, "lr": 0.02}
    train(settings(llama, data, out, steps=1, **common))
    train(settings(llama, data, out, steps=3, resume=True, best=True, **common))
    assert complete_steps(out / "checkpoints") == [1, 3]
