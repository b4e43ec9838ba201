"""Every key that a config.json of the Llama and Qwen2 types may have, decided one by one. No torch.

Keys are those that transformers' two config classes, their base class and its rotary parameters know, with those that
older releases wrote and that published checkpoints have. A test holds the lists against the installed transformers. A
key that is in none of them is named in a warning: it may change the arithmetic, and nobody has looked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphcache.errors import GraphcacheError


class ModelConfigError(GraphcacheError):
    """config.json lacks a setting, or has one that cannot be right."""

    name = "model-config"


class UnsupportedModelError(GraphcacheError):
    """config.json asks for arithmetic that this trainer does not have."""

    name = "unsupported-model"


# What ModelConfig takes.
READ = frozenset(
    {"head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "model_type", "num_attention_heads"}
    | {"num_hidden_layers", "num_key_value_heads", "original_max_position_embeddings", "rms_norm_eps"}
    | {"rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings", "vocab_size", "layer_types"}
)

# Keys whose other values change the arithmetic: the values that are covered, the usual one last.
COVERED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (None, False),
    "attention_bias": (None, False),
    "attention_dropout": (None, 0, 0.0),
    "chunk_size_feed_forward": (None, 0),
    "compression_config": (None,),
    "hidden_act": (None, "silu"),
    "is_causal": (None, True),
    "is_decoder": (None, True, False),  # read by nothing in either model
    "is_encoder_decoder": (None, False),
    "mlp_bias": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "per_layer_config": (None,),
    "pretraining_tp": (None, 1),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "rope_interleaved": (None, False),
    "torchscript": (None, False),  # unties the embeddings
    "use_mrope": (None, False),
    "use_sliding_window": (None, False),
}

_OF_GENERATION = frozenset(
    {"assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens"}
    | {"diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size"}
    | {"encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty"}
    | {"forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length"}
    | {"no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams"}
    | {"num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty"}
    | {"return_dict_in_generate", "suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p"}
    | {"typical_p", "use_cache"}
)
_OF_OTHER_TASKS = frozenset(
    {"cross_attention_hidden_size", "decoder_start_token_id", "finetuning_task", "id2label", "label2id", "num_labels"}
    | {"prefix", "problem_type", "sep_token_id", "task_specific_params", "tie_encoder_decoder"}
)
_OF_BOOKKEEPING = frozenset(
    {"_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attn_implementation"}
    | {"bos_token_id", "dtype", "eos_token_id", "gradient_checkpointing", "initializer_range", "is_llama_config"}
    | {"name_or_path", "output_attentions", "output_hidden_states", "pad_token_id", "return_dict", "tf_legacy_loss"}
    | {"tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version", "unsloth_fixed"}
    | {"unsloth_version", "use_bfloat16", "use_return_dict"}
)
# Of Qwen2, and in force with use_sliding_window alone, which is refused.
_OF_WINDOWS = frozenset({"max_window_layers", "sliding_window"})
# What changes nothing of a training step.
NO_EFFECT = _OF_GENERATION | _OF_OTHER_TASKS | _OF_BOOKKEEPING | _OF_WINDOWS

# The model as such. Others (a classifier, an encoder) may compute something else from the same settings.
ARCHITECTURES = ("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM", "Qwen2ForCausalLM", "Qwen2Model")

ROPE_READ = frozenset(
    {"factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings", "partial_rotary_factor"}
    | {"rope_theta", "rope_type", "type"}
)
# Of the rotary types that are refused; the two that are covered do not read them.
ROPE_NO_EFFECT = frozenset(
    {"attention_factor", "beta_fast", "beta_slow", "long_factor", "mrope_section", "mscale", "mscale_all_dim"}
    | {"short_factor", "truncate"}
)


def refuse_other_arithmetic(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError for a key of COVERED with another value, ModelConfigError for impossible ones."""
    for name, covered in COVERED.items():
        value = config.get(name)
        if value not in covered:
            raise UnsupportedModelError(
                f"{name} is {value!r} in config.json",
                hint=f"this trainer covers {name} = {covered[-1]!r} only",
            )
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise ModelConfigError(f"layer_types is {kinds!r}: not a list")
    other = sorted({str(kind) for kind in kinds if kind != "full_attention"})
    if other:
        raise UnsupportedModelError(f"layer_types has {', '.join(other)}", hint="only full_attention is covered")


def notices(config: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of config.json, accepted already, should know: keys that nobody has decided, settings in doubt."""
    unknown = sorted(config.keys() - READ - COVERED.keys() - NO_EFFECT - {"architectures"})
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    unknown += [f"{name} of the rotary parameters" for name in sorted(rope.keys() - ROPE_READ - ROPE_NO_EFFECT)]
    if unknown:
        yield f"config.json has settings that this trainer does not know and ignores: {', '.join(map(ascii, unknown))}"
    named = config.get("architectures") or []
    if isinstance(named, list) and named and not set(map(str, named)) & set(ARCHITECTURES):
        shown = ", ".join(map(ascii, named))
        yield f"architectures is {shown}: what is trained is the causal language model of {config['model_type']}"
    both = config.get("rope_scaling"), config.get("rope_parameters")
    if all(both) and both[0] != both[1]:
        yield "rope_scaling and rope_parameters differ: rope_scaling counts, as in transformers, and rope_theta"
