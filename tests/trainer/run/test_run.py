from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.runs import (
    batches_of,
    corpus_of,
    losses,
    records,
    reference_losses,
    settings,
    train,
    whole_batch_loss,
)
from trainer.checkpoint.folder import newest
from trainer.config import ConfigError, check_resumable
from trainer.data.corpus import IGNORED
from trainer.record.folder import RunFolderError
from trainer.run.start import run
from trainer.step import schedule
from trainer.step.loop import NonFiniteLossError


def weights_of(out):
    return load_file(newest(out / "checkpoints").folder / "model.safetensors")


def assert_same_state(one, other):
    """Every byte of the newest checkpoints but the settings in the marker."""
    first, second = newest(one / "checkpoints"), newest(other / "checkpoints")
    assert first.step == second.step
    assert first.files == second.files


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Documents of a few tokens, in all of which something counts."""
    file = tmp_path_factory.mktemp("short") / "short.jsonl"
    file.write_text("".join(json.dumps({"text": "abcdefgh"[i % 5 :] * (1 + i % 2)}) + "\n" for i in range(90)))
    return file


@pytest.mark.parametrize("masked", [True, False])
def test_documents_of_a_sequence_see_each_other_only_without_the_mask(llama, tmp_path, masked):
    """What comes before a document in its sequence changes nothing of it with the mask, and all of it without."""
    text = [json.dumps({"text": word}) for word in ("abcdefgh", "hgfedcba", "bcdefghabcd")]
    found = []
    for head in ("aaaaaaa", "bbbbbbb"):
        file = tmp_path / f"{head}.jsonl"
        asked = json.dumps({"messages": [{"role": "user", "content": head}]})  # nothing counts in it
        file.write_text("\n".join([asked, *text]) + "\n")
        config = settings(llama, file, tmp_path / head, steps=1, accum=1, document_mask=masked, seq=64)
        found.append(train(config)[0])
    assert found[0]["label_tokens"] == found[1]["label_tokens"]
    same = found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-7)
    assert same == masked


def test_a_run_without_the_mask_is_resumed_without_it(llama, short, tmp_path):
    out, straight = tmp_path / "run", tmp_path / "straight"
    expected = losses(train(settings(llama, short, straight, steps=4, document_mask=False)))
    assert expected != losses(train(settings(llama, short, tmp_path / "masked", steps=4)))
    train(settings(llama, short, out, steps=2, document_mask=False))
    with pytest.raises(ConfigError, match="--document-mask was False and is True"):
        run(settings(llama, short, out, steps=4, resume=True))
    assert losses(train(settings(llama, short, out, steps=4, resume=True, document_mask=False))) == expected


@pytest.mark.parametrize("backend", ["cpu", "cpu:2"])
def test_packed_documents_equal_transformers_with_position_ids(qwen2, short, tmp_path, monkeypatch, backend):
    """Several documents in every sequence. No mask is kept through the step, but for the first micro-batch's."""
    monkeypatch.setattr(schedule, "MASK_BYTES", 2 * 2 * 32 * 32 * 4)
    config = settings(qwen2, short, tmp_path / "run", steps=6, accum=3, backend=backend)
    corpus = corpus_of(config)
    assert all(len(starts) > 1 for step in range(6) for b in batches_of(config, corpus, step) for starts in b.starts)
    assert losses(train(config)) == pytest.approx(reference_losses(config), rel=1e-5)


def test_a_mask_for_several_sequences_at_once_is_refused(llama, data, tmp_path):
    with pytest.raises(ConfigError, match="--document-mask needs --micro-batch 1"):
        settings(llama, data, tmp_path / "run", micro_batch=2, document_mask=True)
    assert not settings(llama, data, tmp_path / "run", micro_batch=2).masks_documents
    old = settings(llama, data, tmp_path / "run").as_json()
    del old["document_mask"]  # of a run before there was a mask
    check_resumable(old, settings(llama, data, tmp_path / "run", document_mask=False))
    with pytest.raises(ConfigError, match="--document-mask was False and is True"):
        check_resumable(old, settings(llama, data, tmp_path / "run"))


@pytest.mark.parametrize(("accum", "steps"), [(1, 20), (4, 8)])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_steps_equal_transformers_on_the_whole_batch(kind, accum, steps, data, tmp_path, request):
    config = settings(request.getfixturevalue(kind), data, tmp_path / "run", steps=steps, accum=accum)
    found = losses(train(config))
    assert found == pytest.approx(reference_losses(config), rel=1e-5)
    assert found[-1] < found[0] - 0.1


def test_a_partial_step_and_padded_micro_batches_equal_transformers(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", steps=12, accum=7, micro_batch=2)
    steps = [batches_of(config, corpus_of(config), step) for step in range(config.steps)]
    assert {len(batches) for batches in steps} > {7}
    assert any((batch.labels[1] == IGNORED).all() for batches in steps for batch in batches)
    assert losses(train(config)) == pytest.approx(reference_losses(config), rel=1e-5)


def test_clipping_equals_transformers_and_is_reported(qwen2, data, tmp_path):
    config = settings(qwen2, data, tmp_path / "run", steps=8, clip_norm=0.5)
    found = train(config)
    assert losses(found) == pytest.approx(reference_losses(config), rel=1e-5)
    assert all(record["grad_norm"] > 0.5 and record["clip_factor"] < 1 for record in found)


def test_two_devices_equal_one_bit_for_bit(llama, data, tmp_path):
    one = train(settings(llama, data, tmp_path / "one"))
    two = train(settings(llama, data, tmp_path / "two", backend="cpu:2"))
    assert losses(two) == losses(one)
    assert set(two[0]["device_bytes"]) == {"cpu:0", "cpu:1"}
    assert_same_state(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_5_and_5_steps_equal_10_bit_for_bit(qwen2, data, tmp_path, dtype):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    common = {"dtype": dtype, "accum": 3, "warmup_steps": 3}
    expected = losses(train(settings(qwen2, data, straight, steps=10, **common)))
    train(settings(qwen2, data, broken, steps=5, **common))
    found = train(settings(qwen2, data, broken, steps=10, resume=True, **common))
    assert losses(found) == expected
    assert [record["step"] for record in found] == list(range(1, 11))
    assert_same_state(straight, broken)


def test_steps_after_the_newest_checkpoint_are_done_again(llama, data, tmp_path):
    """As after a kill between two checkpoints."""
    out = tmp_path / "run"
    expected = losses(train(settings(llama, data, tmp_path / "straight", steps=6)))
    train(settings(llama, data, out, steps=3))
    with (out / "steps.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "loss": 99.0}) + '\n{"step": 5, "lo')
    assert losses(train(settings(llama, data, out, steps=6, resume=True))) == expected


def test_resuming_before_the_first_checkpoint_begins_at_the_beginning(llama, data, tmp_path):
    expected = losses(train(settings(llama, data, tmp_path / "straight")))
    assert losses(train(settings(llama, data, tmp_path / "run", resume=True))) == expected


def test_a_finished_run_has_nothing_to_do(llama, data, tmp_path):
    before = train(settings(llama, data, tmp_path / "run"))
    assert train(settings(llama, data, tmp_path / "run", resume=True)) == before


def test_a_run_does_not_overwrite_another(llama, data, tmp_path):
    train(settings(llama, data, tmp_path / "run", steps=1))
    with pytest.raises(RunFolderError, match="holds a run already"):
        run(settings(llama, data, tmp_path / "run"))


def test_other_settings_or_data_are_refused_on_resume(llama, data, tmp_path):
    out = tmp_path / "run"
    train(settings(llama, data, out, steps=1))
    with pytest.raises(ConfigError, match="--accum was 2 and is 3"):
        run(settings(llama, data, out, resume=True, accum=3))
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text() + '{"text": "more"}\n')
    with pytest.raises(ConfigError, match="the data has digest"):
        run(settings(llama, other, out, resume=True))


@pytest.mark.parametrize("workers", [1, 4])
def test_the_number_of_update_workers_changes_no_bit(llama, data, tmp_path, workers, monkeypatch):
    monkeypatch.setattr("trainer.optim.adamw.available_cpus", lambda: 8)  # fewer would cap the workers
    train(settings(llama, data, tmp_path / "two", dtype="bfloat16"))
    train(settings(llama, data, tmp_path / "other", dtype="bfloat16", update_workers=workers))
    assert_same_state(tmp_path / "two", tmp_path / "other")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_resident_layers_equal_offload_bit_for_bit(kind, dtype, data, tmp_path, request):
    model = request.getfixturevalue(kind)
    offload = train(settings(model, data, tmp_path / "offload", dtype=dtype, clip_norm=1.0))
    common = {"dtype": dtype, "clip_norm": 1.0, "resident_layers": 1, "backend": "cpu:2"}
    resident = train(settings(model, data, tmp_path / "resident", **common))
    assert losses(resident) == losses(offload)
    assert [r["grad_norm"] for r in resident] == [r["grad_norm"] for r in offload]
    assert_same_state(tmp_path / "offload", tmp_path / "resident")


def test_a_run_may_go_on_with_other_layers_resident(llama, data, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(settings(llama, data, straight, steps=6))
    for steps, resident in ((2, 3), (4, 0), (6, 1)):
        train(settings(llama, data, broken, steps=steps, resident_layers=resident, resume=True))
    assert_same_state(straight, broken)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_learning_rate_of_zero_changes_nothing(kind, data, tmp_path, request):
    model = request.getfixturevalue(kind)
    train(settings(model, data, tmp_path / "run", lr=0.0, steps=3))
    before, after = load_file(model / "model.safetensors"), weights_of(tmp_path / "run")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_tied_table_is_updated_once(qwen2, data, tmp_path):
    """After the first step AdamW moves every element by lr at most; two updates would move it by two."""
    lr = 1e-3
    train(settings(qwen2, data, tmp_path / "run", lr=lr, steps=1, weight_decay=0.0))
    name = "model.embed_tokens.weight"
    moved = (weights_of(tmp_path / "run")[name] - load_file(qwen2 / "model.safetensors")[name]).abs().max().item()
    assert moved == pytest.approx(lr, rel=1e-3)
    assert "lm_head.weight" not in weights_of(tmp_path / "run")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_checkpoint_loads_in_transformers_and_gives_the_loss_that_is_logged_next(
    kind, dtype, data, tmp_path, request
):
    config = settings(request.getfixturevalue(kind), data, tmp_path / "run", dtype=dtype, steps=4, save_every=3)
    found = train(config)
    folder = tmp_path / "run" / "checkpoints" / "step-00000003"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert str(model.dtype) == f"torch.{dtype}"
    before, after = AutoTokenizer.from_pretrained(config.model), AutoTokenizer.from_pretrained(folder)
    assert before("abc <|end|>").input_ids == after("abc <|end|>").input_ids
    with torch.no_grad():
        loss = whole_batch_loss(model, batches_of(config, corpus_of(config), 3)).item()
    assert found[3]["loss"] == pytest.approx(loss, rel=1e-5 if dtype == "float32" else 5e-3)


def test_the_schedule_advances_with_steps_and_not_with_micro_batches(llama, data, tmp_path):
    found = train(settings(llama, data, tmp_path / "run", schedule="linear", warmup_steps=2, steps=4, accum=3))
    assert [record["lr"] for record in found] == pytest.approx([5e-4, 1e-3, 1e-3, 5e-4])


def test_a_loss_that_is_not_finite_ends_the_run_before_the_update(tmp_path, data):
    model = write_checkpoint(tmp_path / "model", LLAMA)
    state = load_file(model / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][3] = 3e38  # finite, but no product with it is
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NonFiniteLossError, match=r"the loss of step 1 is nan on sequence \d+ \(tokens .*lines"):
        run(settings(model, data, tmp_path / "run"))
    assert not (tmp_path / "run" / "steps.jsonl").exists()


def test_good_steps_before_a_loss_that_is_not_finite_are_saved(llama, data, tmp_path, monkeypatch):
    from trainer.step.units import HeadPlace

    real, calls = HeadPlace.loss_and_backward, []

    def failing(self, x, labels, scale):
        calls.append(scale)
        loss, dx = real(self, x, labels, scale)
        return (math.nan if len(calls) == 6 else loss), dx

    monkeypatch.setattr(HeadPlace, "loss_and_backward", failing)
    with pytest.raises(NonFiniteLossError, match="step 3"):
        run(settings(llama, data, tmp_path / "run", steps=5))
    assert newest(tmp_path / "run" / "checkpoints").step == 2
    monkeypatch.setattr(HeadPlace, "loss_and_backward", real)
    found = train(settings(llama, data, tmp_path / "run", steps=5, resume=True))
    assert losses(found) == losses(train(settings(llama, data, tmp_path / "straight", steps=5)))


def test_memory_does_not_grow_from_step_to_step(llama, data, tmp_path):
    found = train(settings(llama, data, tmp_path / "run", steps=4))
    assert {record["device_bytes"]["cpu"] for record in found} == {found[0]["device_bytes"]["cpu"]}
    assert {record["device_peak_bytes"]["cpu"] for record in found[1:]} == {found[1]["device_peak_bytes"]["cpu"]}


def test_the_run_folder_says_what_was_run(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", steps=2)
    run(config)
    assert json.loads((config.out / "config.json").read_text()) == config.as_json()
    environment = json.loads((config.out / "environment.json").read_text())
    assert environment["data"]["digest"] == corpus_of(config).facts.digest
    assert torch.__version__.startswith(environment["versions"]["torch"])
    assert environment["devices"] == ["cpu  the host"]
    assert [record["step"] for record in records(config.out)] == [1, 2]


def test_one_pass_over_the_data_is_the_default(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", steps=None, accum=16)
    corpus = corpus_of(config)
    found = train(config)
    assert len(found) == corpus.steps_per_epoch(16) > 1
    assert sum(record["label_tokens"] for record in found) == corpus.facts.label_tokens


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rms_norm_eps": 1e-3}, "eps was 1e-05 and is 0.001"),
        ({"rope_theta": 5000.0}, "rope_theta was 10000.0 and is 5000.0"),
        ({"num_hidden_layers": 2}, "layers was 3 and is 2"),
        ({"model_type": "qwen2"}, "model_type was 'llama' and is 'qwen2'; qkv_bias was False and is True"),
    ],
)
def test_another_model_is_refused_on_resume(llama, data, tmp_path, changed, named):
    out = tmp_path / "run"
    train(settings(llama, data, out, steps=1))
    before = contents(out)
    other = write_checkpoint(tmp_path / "model", LLAMA | changed)
    with pytest.raises(ConfigError) as error:
        run(settings(other, data, out, steps=2, resume=True))
    assert error.value.message == f"--model is not the model of {out}/checkpoints/step-00000001: {named}"
    assert contents(out) == before


def test_a_models_longest_sequence_may_differ_on_resume(llama, data, tmp_path):
    train(settings(llama, data, tmp_path / "run", steps=1))
    other = write_checkpoint(tmp_path / "model", LLAMA | {"max_position_embeddings": 64})
    assert len(train(settings(other, data, tmp_path / "run", steps=2, resume=True))) == 2


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_resume_that_trains_nothing_changes_nothing(llama, data, tmp_path):
    out = tmp_path / "run"
    train(settings(llama, data, out, steps=3))
    before = contents(out)
    summary = run(settings(llama, data, out, steps=2, resume=True, update_workers=1))
    assert summary["checkpoint"] == str(out / "checkpoints" / "step-00000003")
    with pytest.raises(ConfigError):
        run(settings(llama, data, out, resume=True, accum=5))
    assert contents(out) == before


def test_each_session_is_on_record(llama, data, tmp_path):
    out = tmp_path / "run"
    train(settings(llama, data, out, steps=1, update_workers=1))
    train(settings(llama, data, out, steps=2, resume=True))
    sessions = [json.loads((out / name).read_text()) for name in ("environment-0001.json", "environment.json")]
    assert [session["resumed_from_step"] for session in sessions] == [0, 1]
    assert [session["settings"]["update_workers"] for session in sessions] == [1, 2]
    assert sessions[1]["settings"] == json.loads((out / "config.json").read_text())


def test_one_pass_goes_on_as_its_number_of_steps_under_a_schedule(llama, data, tmp_path):
    common = {"accum": 16, "schedule": "cosine"}
    config = settings(llama, data, tmp_path / "run", steps=None, save_every=1, **common)
    found = train(config)
    shutil.rmtree(newest(tmp_path / "run" / "checkpoints").folder)
    again = train(settings(llama, data, tmp_path / "run", steps=len(found), resume=True, **common))
    assert losses(again) == losses(found)


def test_a_models_folder_is_no_place_for_a_run(llama, data, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(llama, model)
    before = contents(model)
    for resume in (False, True):
        for trained in (model, llama):
            with pytest.raises(RunFolderError, match=r"holds config\.json, which no run has written"):
                run(settings(trained, data, model, resume=resume))
    assert contents(model) == before


def test_a_run_leaves_its_newest_step_for_prometheus_and_all_for_tensorboard(llama, data, tmp_path):
    config = settings(llama, data, tmp_path / "run", steps=2, tensorboard=tmp_path / "events")
    last = train(config)[-1]
    assert f"graphcache_trainer_loss {last['loss']}" in (tmp_path / "run" / "metrics.prom").read_text()
    accumulator = EventAccumulator(str(tmp_path / "events"))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("loss")] == [1, 2]
