"""config.json in the spellings that are met, and each refusal by name."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig, Qwen2Config
from transformers.modeling_rope_utils import RopeParameters

from trainer.architecture.config import ModelConfig, RopeScaling
from trainer.architecture.config_keys import (
    COVERED,
    NO_EFFECT,
    READ,
    ROPE_NO_EFFECT,
    ROPE_READ,
    ModelConfigError,
    UnsupportedModelError,
    notices,
)

SMOLLM = json.loads((Path(__file__).parents[2] / "data/smollm2-135m/config.json").read_text())
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
}
SCALING = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def test_smollm2() -> None:
    config = ModelConfig.from_json(SMOLLM)
    assert (config.hidden, config.layers, config.heads, config.kv_heads, config.head_dim) == (576, 30, 9, 3, 64)
    assert (config.intermediate, config.vocab, config.rope_theta) == (1536, 49152, 100000.0)
    assert config.tied
    assert not config.qkv_bias
    assert config.rope_scaling is None


def test_qwen2_has_biases_and_ignores_a_window_that_is_off() -> None:
    config = ModelConfig.from_json(QWEN)
    assert config.qkv_bias
    assert (config.q_width, config.kv_width) == (896, 128)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": SCALING},
        {"rope_parameters": SCALING | {"rope_theta": 500000.0}},
        {"rope_theta": 500000.0, "rope_parameters": SCALING},
        {"rope_theta": 500000.0, "rope_scaling": {"type" if k == "rope_type" else k: v for k, v in SCALING.items()}},
    ],
    ids=["transformers-4", "transformers-5", "mixed", "old-name-of-type"],
)
def test_llama3_scaling_in_every_spelling(rope: dict) -> None:
    config = ModelConfig.from_json({k: v for k, v in SMOLLM.items() if not k.startswith("rope")} | rope)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"is_causal": False}, "is_causal"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"per_layer_config": {"0": {"num_attention_heads": 3}}}, "per_layer_config"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "llama3"}}}, "full_attention"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_other_arithmetic_is_refused_by_name(change: dict, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        ModelConfig.from_json(SMOLLM | change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_attention_heads": "9"}, "num_attention_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": 49152.0}, "vocab_size"),
        ({"num_key_value_heads": 2}, "9 attention heads"),
        ({"head_dim": 63}, "head_dim"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"layer_types": 5}, "layer_types is 5"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"rope_scaling": "llama3"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": SCALING | {"low_freq_factor": 4.0}}, "high_freq_factor"),
        ({"rope_scaling": SCALING, "original_max_position_embeddings": 4096}, "8192 in the rotary parameters and 4096"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"head_dim": None, "num_attention_heads": 7, "num_key_value_heads": 7}, "7 attention heads"),
    ],
)
def test_impossible_settings_are_named(change: dict, named: str) -> None:
    with pytest.raises(ModelConfigError, match=named):
        ModelConfig.from_json(SMOLLM | change)


ROPES = st.fixed_dictionaries(
    {},
    optional={
        "rope_theta": st.sampled_from([7.0, 5e5]),
        "rope_scaling": st.sampled_from([None, {}, SCALING, SCALING | {"rope_theta": 3e4}, {"rope_type": "default"}]),
        "rope_parameters": st.sampled_from([None, SCALING | {"rope_theta": 2e4}, {"rope_type": "default"}]),
    },
)


@given(ROPES)
def test_rotary_parameters_are_those_that_transformers_takes(rope: dict[str, Any]) -> None:
    plain = {name: value for name, value in SMOLLM.items() if not name.startswith("rope")}
    ours = ModelConfig.from_json(plain | rope)
    theirs = LlamaConfig(**deepcopy(plain | rope)).rope_parameters
    assert ours.rope_theta == theirs["rope_theta"]
    assert (ours.rope_scaling is None) == (theirs["rope_type"] == "default")
    if ours.rope_scaling is not None:
        assert ours.rope_scaling == RopeScaling(
            theirs["factor"],
            theirs["low_freq_factor"],
            theirs["high_freq_factor"],
            theirs["original_max_position_embeddings"],
        )


def test_every_key_that_transformers_knows_is_decided() -> None:
    """A key that a newer transformers adds fails here: look what it does, and decide it."""
    known = {field.name for kind in (LlamaConfig, Qwen2Config) for field in fields(kind)}
    known |= LlamaConfig().to_dict().keys() | Qwen2Config().to_dict().keys()
    known |= GenerationConfig._get_default_generation_params().keys()
    assert known - READ - COVERED.keys() - NO_EFFECT == {"architectures"}
    assert set(get_type_hints(RopeParameters)) <= ROPE_READ | ROPE_NO_EFFECT


def test_no_key_is_decided_twice() -> None:
    assert len(READ | COVERED.keys() | NO_EFFECT) == len(READ) + len(COVERED) + len(NO_EFFECT)
    assert not ROPE_READ & ROPE_NO_EFFECT


@pytest.mark.parametrize("model", [SMOLLM, QWEN, SMOLLM | LlamaConfig().to_dict(), QWEN | Qwen2Config().to_dict()])
def test_known_keys_are_accepted_without_a_word(model: dict) -> None:
    ModelConfig.from_json(model)
    assert not list(notices(model))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping'"),
        ({"auto_map": {}, "residual\nscale": 0.5}, r"'auto_map', 'residual\nscale'"),
        ({"rope_scaling": {"rope_type": "default", "ntk_beta": 4}}, "'ntk_beta of the rotary parameters'"),
        ({"architectures": ["LlamaEncoderModel"]}, "LlamaEncoderModel"),
        ({"rope_scaling": SCALING, "rope_parameters": {"rope_theta": 1.0}}, "rope_scaling counts"),
    ],
)
def test_what_nobody_has_decided_is_named(change: dict, named: str) -> None:
    ModelConfig.from_json(SMOLLM | change)
    (notice,) = notices(SMOLLM | change)
    assert named in notice


def test_catalogs_leave_torch_out() -> None:
    code = "import sys, trainer.catalogs.layer, trainer.catalogs.head; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
