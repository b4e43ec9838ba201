"""Whole checkpoints of a few thousand random parameters, with a tokenizer of bytes, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer.architecture.config import ModelConfig
from trainer.checkpoint.pretrained import expected_shapes

SPECIAL = ("<|end|>", "<|turn|>")
TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
VOCABULARY = 320  # 256 bytes, the special tokens, and rows that no token uses, as real models have

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True}


def write_checkpoint(
    folder: Path, config: dict[str, Any], *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Path:
    """A checkpoint in `folder`, which it returns: random weights (norms near 1), tokenizer, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_shapes(ModelConfig.from_json(config)).items():
        values = torch.randn(shape, generator=random) * 0.1
        tensors[name] = (values + 1 if "norm" in name else values).to(dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[0], "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_tokenizer() -> Tokenizer:
    """One token a byte, then SPECIAL."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
