"""The checkpoint that a run starts from: every tensor accounted for, one read at a time.

A tensor is read into memory of its own and handed over; nothing here keeps it, so the weights are never held twice.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from graphcache.errors import GraphcacheError
from graphcache.header.table import TensorInfo, TensorTable, read_config, read_table
from trainer.architecture.config import ModelConfig
from trainer.architecture.config_keys import notices
from trainer.architecture.parameters import parameter_shapes
from trainer.host.tensor_bytes import read_tensor
from trainer.model.rope import inverse_frequencies

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
# What old Llama 2 checkpoints store although it follows from config.json.
INVERSE_FREQUENCIES = "self_attn.rotary_emb.inv_freq"


class WeightsError(GraphcacheError):
    """A tensor of the checkpoint is missing, has another shape, or is one that the model has no place for."""

    name = "weights"


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model by its name in a checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.hidden)}
    for layer in range(config.layers):
        shapes |= {layer_prefix(layer) + name: shape for name, shape in parameter_shapes(config).items()}
    shapes[NORM] = (config.hidden,)
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    return shapes


class InputCheckpoint:
    """A checkpoint whose tensors are exactly the model's; their values are read when asked for."""

    def __init__(self, model: Path) -> None:
        """Reads headers and config.json. Raises WeightsError naming every tensor that is missing, odd or left over."""
        config = read_config(model)
        if config is None:
            raise WeightsError(f"{model} has no config.json", hint="--model is a folder as transformers saves it")
        self.folder = model if model.is_dir() else model.parent
        self.config_json = config
        self.config = ModelConfig.from_json(config)
        self.notices = tuple(notices(config))
        self.table: TensorTable = read_table(model)
        self._shapes = expected_shapes(self.config)
        self._shards = {path.name: path for path in self.table.shards}
        self._check()

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values())

    def read(self, name: str) -> Tensor:
        """The tensor in the checkpoint's dtype, in memory that the caller owns. Raises WeightsError."""
        info = self.table[name]
        path = self._shards[info.shard]
        try:
            with path.open("rb", buffering=0) as file:
                return read_tensor(file.fileno(), info.shape, DTYPES[info.dtype], info.begin)
        except OSError as error:
            raise WeightsError(f"{path}: tensor {name} cannot be read: {error}") from error

    def check_derived(self) -> None:
        """Checks tensors that follow from others: a stored tied head, rotary frequencies.

        Raises WeightsError: training would drop what they say without a word.
        """
        for info in self.table:
            if info.name in self._shapes:
                continue
            if info.name == HEAD:
                if not self._equal(info, self.table[EMBEDDING]):
                    raise WeightsError(
                        f"{HEAD} differs from {EMBEDDING}, and config.json says that they are tied",
                        hint="set tie_word_embeddings to false in config.json to train both",
                    )
            elif not torch.allclose(self.read(info.name).float(), inverse_frequencies(self.config), rtol=1e-2):
                raise WeightsError(f"{info.name} differs from the frequencies that config.json gives")

    def _equal(self, a: TensorInfo, b: TensorInfo) -> bool:
        """Whether two tensors hold the same bytes, compared a few MB at a time."""
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        step = 1 << 24
        with self._shards[a.shard].open("rb") as file_a, self._shards[b.shard].open("rb") as file_b:
            file_a.seek(a.begin)
            file_b.seek(b.begin)
            pieces = (min(step, a.size_bytes - done) for done in range(0, a.size_bytes, step))
            return all(file_a.read(n) == file_b.read(n) for n in pieces)

    def _check(self) -> None:
        faults = [f"{name} is missing" for name in self._shapes if name not in self.table]
        for info in self.table:
            faults.extend(self._faults(info))
        if faults:
            shown = "; ".join(faults[:10]) + (f"; and {len(faults) - 10} more" if len(faults) > 10 else "")
            raise WeightsError(
                f"{self.folder}: {shown}", hint=f"config.json describes a {self.config.model_type} of {self._size()}"
            )

    def _faults(self, info: TensorInfo) -> list[str]:
        expected = self._shapes.get(info.name)
        if expected is None and not self._is_derived(info):
            return [f"{info.name} {list(info.shape)} has no place in the model"]
        if info.dtype not in DTYPES:
            return [f"{info.name} is of dtype {info.dtype}, not {', '.join(DTYPES)}"]
        if expected is not None and info.shape != expected:
            return [f"{info.name} has shape {list(info.shape)}, not {list(expected)}"]
        return []

    def _is_derived(self, info: TensorInfo) -> bool:
        if info.name == HEAD:
            return self.config.tied
        layers = (layer_prefix(layer) + INVERSE_FREQUENCIES for layer in range(self.config.layers))
        return info.name in layers and info.shape == (self.config.head_dim // 2,)

    def _size(self) -> str:
        c = self.config
        return f"{c.layers} layers, hidden {c.hidden}, vocabulary {c.vocab}, {'tied' if c.tied else 'untied'}"
