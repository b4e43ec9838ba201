"""Checkpoint folders with a real model's tensor names, dtypes and shapes, and no data.

    python -m tests.support.sparse llama-3.1-405b OUT

Shards are sparse files: apparent size as published, a few hundred KB on disk, every weight reads as zero. Dimensions
are those of the published config.json files; the split into shards follows the hub's limit of 5 GB, so a shard's
boundaries are not the publishers' own.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARD_LIMIT_BYTES = 5_000_000_000
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Preset:
    """Dimensions of a published model."""

    model_type: str
    vocab: int
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    rope_theta: float
    qkv_bias: bool = False
    rope_factor: float | None = None

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[self.model_type]
        config = {
            "architectures": [architecture],
            "model_type": self.model_type,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": self.tied,
            "rms_norm_eps": 1e-6 if self.model_type == "qwen2" else 1e-5,
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
            "max_position_embeddings": 131072,
        }
        if self.rope_factor is not None:
            config["rope_scaling"] = {**LLAMA3_SCALING, "factor": self.rope_factor}
        return config

    def tensors(self) -> dict[str, list[int]]:
        """Shapes by name, in the order in which they are saved."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = {
            "input_layernorm.weight": [self.hidden],
            "mlp.down_proj.weight": [self.hidden, self.intermediate],
            "mlp.gate_proj.weight": [self.intermediate, self.hidden],
            "mlp.up_proj.weight": [self.intermediate, self.hidden],
            "post_attention_layernorm.weight": [self.hidden],
            "self_attn.q_proj.weight": [q, self.hidden],
            "self_attn.k_proj.weight": [kv, self.hidden],
            "self_attn.v_proj.weight": [kv, self.hidden],
            "self_attn.o_proj.weight": [self.hidden, q],
        }
        if self.qkv_bias:
            layer |= {f"self_attn.{n}_proj.bias": [size] for n, size in (("q", q), ("k", kv), ("v", kv))}
        tensors = {"model.embed_tokens.weight": [self.vocab, self.hidden]}
        for i in range(self.layers):
            tensors |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        tensors["model.norm.weight"] = [self.hidden]
        if not self.tied:
            tensors["lm_head.weight"] = [self.vocab, self.hidden]
        return tensors


PRESETS = {
    "llama-3.2-1b": Preset("llama", 128256, 2048, 16, 8192, 32, 8, 64, True, 5e5, rope_factor=32.0),
    "llama-3.1-8b": Preset("llama", 128256, 4096, 32, 14336, 32, 8, 128, False, 5e5, rope_factor=8.0),
    "llama-3.1-70b": Preset("llama", 128256, 8192, 80, 28672, 64, 8, 128, False, 5e5, rope_factor=8.0),
    "llama-3.1-405b": Preset("llama", 128256, 16384, 126, 53248, 128, 8, 128, False, 5e5, rope_factor=8.0),
    "qwen2.5-0.5b": Preset("qwen2", 151936, 896, 24, 4864, 14, 2, 64, True, 1e6, qkv_bias=True),
    "qwen2.5-7b": Preset("qwen2", 152064, 3584, 28, 18944, 28, 4, 128, False, 1e6, qkv_bias=True),
    "smollm2-135m": Preset("llama", 49152, 576, 30, 1536, 9, 3, 64, True, 1e5),
}


def write_checkpoint(preset: str, folder: Path) -> Path:
    """The checkpoint folder of a preset; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PRESETS[preset].config(), indent=2) + "\n")
    shards = split(PRESETS[preset].tensors())
    if len(shards) == 1:
        write_shard(folder / "model.safetensors", shards[0])
        return folder
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        write_shard(folder / name, tensors)
    write_index(folder, {t: name for name, tensors in zip(names, shards, strict=True) for t in tensors})
    return folder


def split(tensors: Mapping[str, list[int]]) -> list[dict[str, list[int]]]:
    """BF16 tensors dealt to shards of at most SHARD_LIMIT_BYTES."""
    shards: list[dict[str, list[int]]] = [{}]
    used = 0
    for name, shape in tensors.items():
        size_bytes = 2 * math.prod(shape)
        if shards[-1] and used + size_bytes > SHARD_LIMIT_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = shape
        used += size_bytes
    return shards


def write_index(folder: Path, weight_map: Mapping[str, str]) -> Path:
    """The index that names each tensor's shard."""
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": dict(weight_map)}, indent=2) + "\n")
    return path


def header(tensors: Mapping[str, Iterable[int]], dtype: str = "BF16", item_bytes: int = 2) -> dict[str, Any]:
    """The header's JSON for tensors that lie one after another."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensors.items():
        end = offset + item_bytes * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return entries


def write_shard(path: Path, tensors: Mapping[str, Iterable[int]]) -> int:
    """A sparse BF16 shard; returns the bytes that its header takes, length field included."""
    entries = header(tensors)
    data_bytes = max((e["data_offsets"][1] for n, e in entries.items() if n != "__metadata__"), default=0)
    return write_header(path, json.dumps(entries, separators=(",", ":")).encode(), data_bytes)


def write_header(path: Path, text: bytes, data_bytes: int) -> int:
    """A file with this header, padded to 8 bytes as writers do, and `data_bytes` of hole after it."""
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + data_bytes)
    return 8 + len(text)


if __name__ == "__main__":
    write_checkpoint(sys.argv[1], Path(sys.argv[2]))
