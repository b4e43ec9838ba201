"""What a checkpoint's config.json says about a model of the Llama or Qwen2 type, checked. No torch: catalogs read it.

Covered: Llama 2, 3, 3.1, 3.2 (with `rope_scaling` of the llama3 type, in either spelling of `transformers`), Qwen2 and
2.5 (q, k and v with biases), grouped-query attention, tied and untied embeddings. Anything that would change the
arithmetic and is not covered is an error that names the setting, never ignored (`trainer.architecture.config_keys`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.architecture.config_keys import ModelConfigError, UnsupportedModelError, refuse_other_arithmetic

MODEL_TYPES = ("llama", "qwen2")


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency scaling: `original_length` is the context that the base model was trained with, in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder-only model; all counts, none in bytes.

    hidden:       width of the residual stream
    heads:        query heads, `kv_heads` key and value heads, each `head_dim` wide
    intermediate: width of the MLP
    eps:          of every RMSNorm
    rope_scaling: None for plain rotary embeddings
    max_length:   longest sequence that the model is meant for, None when the config does not say
    """

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied: bool
    qkv_bias: bool
    max_length: int | None

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> ModelConfig:
        """The settings of a config.json that is parsed already.

        Raises ModelConfigError for missing or impossible sizes, UnsupportedModelError for other arithmetic.
        """
        model_type = config.get("model_type")
        if model_type not in MODEL_TYPES:
            raise UnsupportedModelError(
                f"model_type is {model_type!r}", hint=f"supported model types: {', '.join(MODEL_TYPES)}"
            )
        refuse_other_arithmetic(config)
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", heads)
        head_dim = _size(config, "head_dim", hidden // heads)
        if config.get("head_dim") is None and hidden % heads:
            raise ModelConfigError(f"hidden_size {hidden} cannot be shared out to {heads} attention heads")
        if heads % kv_heads:
            raise ModelConfigError(f"{heads} attention heads cannot be shared out to {kv_heads} key-value heads")
        if head_dim % 2:
            raise ModelConfigError(f"head_dim is {head_dim}: rotary embeddings need an even one")
        theta, scaling = _rope(config)
        max_length = config.get("max_position_embeddings")
        return cls(
            model_type=model_type,
            hidden=hidden,
            layers=_size(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=_size(config, "intermediate_size"),
            vocab=_size(config, "vocab_size"),
            eps=_number(config, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tied=_flag(config, "tie_word_embeddings"),
            qkv_bias=model_type == "qwen2",
            max_length=None if max_length is None else _size(config, "max_position_embeddings"),
        )


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer setting; a null counts as not given, as it does in `transformers`."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelConfigError(
            f"config.json has no {name}", hint="is it the config.json of a Llama or Qwen2 checkpoint?"
        )
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ModelConfigError(f"{name} is {value!r}: not a positive integer")
    return value


def _number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number setting."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelConfigError(f"config.json has no {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ModelConfigError(f"{name} is {value!r}: not a positive number")
    return float(value)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    """A switch that is off unless it is given; the text "false" is an error."""
    value = config.get(name)
    if value not in (None, True, False):
        raise ModelConfigError(f"{name} is {value!r}: not true or false")
    return bool(value)


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, as `convert_rope_params_to_dict` of transformers 5 takes them: from `rope_scaling` where it is
    given, else from `rope_parameters`; a base that is not in there is `rope_theta` beside it, else 10,000.
    """
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ModelConfigError(f"rope_scaling is {parameters!r}: not an object")
    nested = sorted(name for name, value in parameters.items() if isinstance(value, Mapping))
    if nested:
        raise UnsupportedModelError(f"rope_parameters has settings of their own for {', '.join(nested)}")
    where = "rope_theta"
    theta = _number(parameters if parameters.get(where) is not None else config, where, 10000.0)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if _number(parameters, "partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor is {parameters['partial_rotary_factor']!r}")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModelError(f"rope_scaling is of type {kind!r}", hint="supported: default, llama3")
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    if high <= low:
        raise ModelConfigError(f"rope_scaling: high_freq_factor {high} is not above low_freq_factor {low}")
    return theta, RopeScaling(_number(parameters, "factor"), low, high, _original_length(config, parameters))


def _original_length(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    """The original length from the rotary parameters.

    transformers does not read the key of the same name beside them, so that one must not say something else. Raises
    ModelConfigError.
    """
    name = "original_max_position_embeddings"
    length = _size(parameters, name)
    if config.get(name) not in (None, length):
        raise ModelConfigError(f"{name} is {length} in the rotary parameters and {config[name]!r} beside them")
    return length
