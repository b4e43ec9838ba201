"""A checkpoint's contents for tests, as a function of the step. As a program it saves one after another, to be killed.

python -m tests.trainer.checkpoint.example MODEL CHECKPOINTS FIRST_STEP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.support.tiny import LLAMA
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import parameter_shapes
from trainer.checkpoint.folder import SavedCheckpoint, delete_all_but, sweep
from trainer.checkpoint.load import read_state
from trainer.checkpoint.pretrained import EMBEDDING, HEAD, NORM, layer_prefix
from trainer.checkpoint.save import Contents, files_beside, save
from trainer.optim.base import AdamState, Parameter

KEEP = 2


@dataclass(frozen=True)
class FakeUnit:
    """Names and shapes alone: what saving needs of a unit."""

    name: str
    prefix: str
    parameters: tuple[Parameter, ...]
    backend: None = None


def units() -> list[FakeUnit]:
    config = ModelConfig.from_json(LLAMA)
    layer = tuple(Parameter(name, shape) for name, shape in parameter_shapes(config).items())
    table = (config.vocab, config.hidden)
    return [
        FakeUnit("model.embed_tokens", "", (Parameter(EMBEDDING, table),)),
        *(FakeUnit(layer_prefix(i)[:-1], layer_prefix(i), layer) for i in range(config.layers)),
        FakeUnit("model.norm", "", (Parameter(NORM, (config.hidden,)),)),
        FakeUnit("lm_head", "", (Parameter(HEAD, table),)),
    ]


def state(step: int, unit: FakeUnit) -> dict[str, AdamState]:
    """Numbers that tell step, unit, parameter and part apart."""
    random = torch.Generator().manual_seed(step * 1000 + len(unit.name))

    def flat(parameter: Parameter) -> torch.Tensor:
        return torch.randn(parameter.shape, generator=random).flatten()

    return {p.name: AdamState(flat(p), flat(p), flat(p)) for p in unit.parameters}


def contents(model: Path, step: int, dtype: str = "bfloat16") -> Contents:
    config_json: Mapping = json.loads((model / "config.json").read_bytes())
    return Contents(
        config_json=config_json,
        beside=files_beside(model),
        dtype=dtype,
        units=units(),
        state=lambda unit: state(step, unit),
        config={"seed": 0},
        data={"digest": "d"},
    )


def assert_is(saved: SavedCheckpoint, step: int) -> None:
    """Every byte of the state is that of `step`."""
    assert saved.step == step
    for unit in units():
        expected = state(step, unit)
        for name, found in read_state(saved, unit).items():
            for part in ("master", "exp_avg", "exp_avg_sq"):
                assert torch.equal(getattr(found, part), getattr(expected[name], part)), (unit.name, name, part)


def save_forever(model: str, checkpoints: str, step: str) -> None:
    """Save this step and all that follow, and say so; to be killed."""
    number = int(step)
    sweep(Path(checkpoints))
    while True:
        save(Path(checkpoints), number, contents(Path(model), number))
        delete_all_but(Path(checkpoints), KEEP)
        print(number, flush=True)
        number += 1
