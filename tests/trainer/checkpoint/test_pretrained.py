from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from trainer.architecture.config import ModelConfig
from trainer.checkpoint.pretrained import EMBEDDING, HEAD, InputCheckpoint, WeightsError, expected_shapes
from trainer.model.rope import inverse_frequencies


def change(folder, **tensors):
    """Add tensors, or take away those given as None; dots are written as double underscores."""
    path = folder / "model.safetensors"
    state = load_file(path) | {name.replace("__", "."): t for name, t in tensors.items()}
    save_file({name: t for name, t in state.items() if t is not None}, path)


@pytest.mark.parametrize("config", [LLAMA, QWEN2])
def test_every_tensor_reads_back(tmp_path, config):
    folder = write_checkpoint(tmp_path, config)
    checkpoint = InputCheckpoint(folder)
    state = load_file(folder / "model.safetensors")
    assert set(expected_shapes(checkpoint.config)) == set(state)
    assert all(torch.equal(checkpoint.read(name), tensor) for name, tensor in state.items())
    assert checkpoint.parameters == sum(t.numel() for t in state.values())


def test_a_hub_snapshot_with_shards_behind_links_reads_back(tmp_path):
    folder = write_checkpoint(tmp_path / "plain", LLAMA)
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    snapshot, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    snapshot.mkdir()
    blobs.mkdir()
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file({n: state[n] for n in part}, blobs / str(i))
        (snapshot / shard).symlink_to(blobs / str(i))
        weight_map |= dict.fromkeys(part, shard)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    os.replace(folder / "config.json", snapshot / "config.json")
    checkpoint = InputCheckpoint(snapshot)
    assert all(torch.equal(checkpoint.read(name), tensor) for name, tensor in state.items())


def test_all_faults_are_named_at_once(tmp_path):
    folder = write_checkpoint(tmp_path, LLAMA)
    change(
        folder,
        model__norm__weight=None,
        model__layers__1__mlp__up_proj__weight=torch.zeros(3, 4),
        model__layers__9__extra=torch.zeros(2),
        model__layers__0__input_layernorm__weight=torch.zeros(32, dtype=torch.float64),
    )
    with pytest.raises(WeightsError) as caught:
        InputCheckpoint(folder)
    assert caught.value.message.count(";") == 3
    assert "model.norm.weight is missing" in caught.value.message
    assert "model.layers.1.mlp.up_proj.weight has shape [3, 4], not [48, 32]" in caught.value.message
    assert "model.layers.9.extra [2] has no place in the model" in caught.value.message
    assert "model.layers.0.input_layernorm.weight is of dtype F64" in caught.value.message


def test_biases_of_qwen2_are_not_dropped_by_a_llama_config(tmp_path):
    folder = write_checkpoint(tmp_path, QWEN2)
    (folder / "config.json").write_text(json.dumps(QWEN2 | {"model_type": "llama"}))
    with pytest.raises(WeightsError, match=r"self_attn\.k_proj\.bias \[16\] has no place"):
        InputCheckpoint(folder)


def test_a_stored_tied_head_must_equal_the_embedding(tmp_path):
    folder = write_checkpoint(tmp_path, QWEN2)
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    change(folder, lm_head__weight=embedding.clone())
    InputCheckpoint(folder).check_derived()
    embedding[0, 0] += 1
    change(folder, lm_head__weight=embedding)
    with pytest.raises(WeightsError, match=f"{HEAD} differs from {EMBEDDING}"):
        InputCheckpoint(folder).check_derived()


def test_stored_rotary_frequencies_must_be_those_of_the_config(tmp_path):
    folder = write_checkpoint(tmp_path, LLAMA)
    frequencies = inverse_frequencies(ModelConfig.from_json(LLAMA))
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=frequencies)
    InputCheckpoint(folder).check_derived()
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=frequencies / 2)
    with pytest.raises(WeightsError, match="differs from the frequencies"):
        InputCheckpoint(folder).check_derived()


def test_a_file_that_shrinks_after_its_header_was_read_is_named(tmp_path):
    folder = write_checkpoint(tmp_path, LLAMA)
    checkpoint = InputCheckpoint(folder)
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 5)
    last = max(checkpoint.table, key=lambda t: t.end)
    with pytest.raises(WeightsError, match=f"{last.name} cannot be read: the file ends 5 bytes early"):
        checkpoint.read(last.name)


def test_a_folder_without_a_config_is_an_error(tmp_path):
    folder = write_checkpoint(tmp_path, LLAMA)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        InputCheckpoint(folder)
