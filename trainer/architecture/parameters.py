"""A decoder layer's parameters as a checkpoint has them, and its weights as a device has them. No torch.

Matrices that multiply the same input are one weight on the device, row under row: one product, one gradient and one
graph where there were two or three. Checkpoints and AdamW, whose state and tiles are a parameter's, keep them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.architecture.config import ModelConfig

Shape = tuple[int, ...]

INPUT_NORM, POST_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
Q, K, V, OUT = (f"self_attn.{name}_proj.weight" for name in "qkvo")
Q_BIAS, K_BIAS, V_BIAS = (f"self_attn.{name}_proj.bias" for name in "qkv")
GATE, UP, DOWN = (f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
# On the device only.
QKV, QKV_BIAS, GATE_UP = "self_attn.qkv_proj.weight", "self_attn.qkv_proj.bias", "mlp.gate_up_proj.weight"

_FUSED = {QKV: (Q, K, V), QKV_BIAS: (Q_BIAS, K_BIAS, V_BIAS), GATE_UP: (GATE, UP)}
_WEIGHT_OF = {part: weight for weight, parts in _FUSED.items() for part in parts}


@dataclass(frozen=True)
class Weight:
    """One tensor on a device. parts: the parameters' short names and shapes, whose rows it has in this order."""

    name: str
    parts: tuple[tuple[str, Shape], ...]

    @property
    def shape(self) -> Shape:
        first = self.parts[0][1]
        return (sum(shape[0] for _, shape in self.parts), *first[1:])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def slice_of(self, name: str) -> slice:
        """Where a part's elements are among those of the weight."""
        begin = 0
        for part, shape in self.parts:
            end = begin + math.prod(shape)
            if part == name:
                return slice(begin, end)
            begin = end
        raise KeyError(name)


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Shape of each parameter of a layer by its short name (after `model.layers.N.`), in the checkpoint's layout."""
    hidden, mlp, q, kv = config.hidden, config.intermediate, config.q_width, config.kv_width
    shapes: dict[str, Shape] = {
        INPUT_NORM: (hidden,),
        Q: (q, hidden),
        K: (kv, hidden),
        V: (kv, hidden),
        OUT: (hidden, q),
        POST_NORM: (hidden,),
        GATE: (mlp, hidden),
        UP: (mlp, hidden),
        DOWN: (hidden, mlp),
    }
    if config.qkv_bias:
        shapes |= {Q_BIAS: (q,), K_BIAS: (kv,), V_BIAS: (kv,)}
    return shapes


def device_weights(shapes: Mapping[str, Shape]) -> tuple[Weight, ...]:
    """The weights that hold parameters of these short names and shapes; the order of `shapes` changes no weight."""
    names = dict.fromkeys(_WEIGHT_OF.get(name, name) for name in shapes)
    members = ((name, _FUSED.get(name, (name,))) for name in names)
    return tuple(
        Weight(name, tuple((part, shapes[part]) for part in parts if part in shapes)) for name, parts in members
    )
