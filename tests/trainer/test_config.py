from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainer.config import ConfigError, RunConfig, check_resumable

BASE = {"model": Path("m"), "data": Path("d"), "out": Path("o")}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("seq", 0),
        ("accum", 0),
        ("micro_batch", -1),
        ("steps", 0),
        ("save_every", 0),
        ("update_workers", 0),
        ("keep", 0),
        ("seed", -1),
        ("warmup_steps", -1),
        ("resident_layers", -1),
        ("lr", -1e-5),
        ("lr", math.nan),
        ("lr", math.inf),
        ("eps", 0.0),
        ("eps", 1e-40),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("weight_decay", -0.1),
        ("clip_norm", 0.0),
        ("clip_norm", math.inf),
        ("schedule", "consine"),
        ("dtype", "float16"),
        ("fusion", 3),
        ("eager_layers", True),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(setting, value):
    flag = "--betas" if setting.startswith("beta") else "--" + setting.replace("_", "-")
    with pytest.raises(ConfigError, match=flag):
        RunConfig(**BASE, **{setting: value})


def test_a_decay_that_takes_whole_weights_away_is_refused():
    with pytest.raises(ConfigError, match="whole weights"):
        RunConfig(**BASE, lr=1.0, weight_decay=1.0)


def test_the_catalogs_options_follow_the_run():
    options = RunConfig(**BASE, seq=128, micro_batch=2, dtype="float32").catalog_options
    assert (options.sequence, options.micro_batch, options.dtype) == (128, 2, "float32")


def test_what_changes_no_arithmetic_may_differ_on_resume():
    before = RunConfig(**BASE).as_json()
    check_resumable(before, RunConfig(model=Path("x"), data=Path("y"), out=Path("z"), steps=7, update_workers=1))


def test_what_changes_arithmetic_may_not_differ_on_resume():
    before = RunConfig(**BASE).as_json()
    with pytest.raises(ConfigError, match=r"--accum was 4 and is 2; --lr was 1e-05 and is 0\.1"):
        check_resumable(before, RunConfig(**BASE, accum=2, lr=0.1))


def test_a_schedule_with_an_end_fixes_the_steps():
    before = RunConfig(**BASE, schedule="linear", steps=5).as_json()
    with pytest.raises(ConfigError, match="--steps was 5 and is 9"):
        check_resumable(before, RunConfig(**BASE, schedule="linear", steps=9))
