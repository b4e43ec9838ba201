from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainer.config import ConfigError, RunConfig, check_resumable, check_same_end

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
        ("seq", 10**20),
        ("accum", 2**31),
        ("steps", 2**31),
        ("update_workers", 10**20),
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
    check_same_end(before, RunConfig(**BASE, schedule="linear", steps=5), 7)
    check_same_end(before, RunConfig(**BASE, schedule="constant", steps=9), 7)
    with pytest.raises(ConfigError, match="--steps was 5 and is 9"):
        check_same_end(before, RunConfig(**BASE, schedule="linear", steps=9), 7)


def test_one_pass_and_its_number_of_steps_are_the_same_end():
    one_pass, seven = (RunConfig(**BASE, schedule="linear", steps=steps) for steps in (None, 7))
    check_same_end(one_pass.as_json(), seven, 7)
    check_same_end(seven.as_json(), one_pass, 7)
    with pytest.raises(ConfigError, match="--steps was 7 and is 8"):
        check_same_end(seven.as_json(), one_pass, 8)


def test_a_seed_may_be_of_any_size():
    assert RunConfig(**BASE, seed=2**64).seed == 2**64


def test_an_emulated_card_has_an_end():
    RunConfig(**BASE, backend="emulator", pool_gib=2.0**20)
    with pytest.raises(ConfigError, match="--pool-gib is 1e"):
        RunConfig(**BASE, backend="emulator", pool_gib=1e308)


def test_every_fault_is_named_at_once():
    with pytest.raises(ConfigError) as found:
        RunConfig(**BASE, lr=-1, accum=0, keep=0, fusion=16)
    assert all(flag in str(found.value) for flag in ("--lr is -1", "--accum is 0", "--keep is 0", "--fusion is 16"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"emulated_time": 0.0}, "--emulated-time is 0.0, and must be above 0.0"),
        ({"emulated_time": 1.0, "emulated_link": -1.0}, "--emulated-link is -1.0"),
        ({"emulated_time": 1.0, "eager_layers": True}, "from its artifact, and --eager-layers uses none"),
        ({"no_arithmetic": True}, "--no-arithmetic needs --emulated-time"),
        ({"emulated_time": 1.0, "backend": "cpu"}, "--emulated-time is for the emulator"),
    ],
)
def test_emulated_times_are_for_the_emulator_and_need_estimates(settings, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**BASE, **{"backend": "emulator", **settings})
