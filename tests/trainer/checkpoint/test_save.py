from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from graphcache.store.files import TEMPORARY
from tests.support.fork_server import fork_server
from tests.support.storms import rounds
from tests.support.tiny import LLAMA, write_checkpoint
from tests.trainer.checkpoint.example import assert_is, contents, save_forever, state, units
from trainer.checkpoint import folder as folder_module
from trainer.checkpoint import save as save_module
from trainer.checkpoint.finite import NonFiniteStateError, is_finite
from trainer.checkpoint.folder import MARKER, complete_steps, delete_all_but, newest, sweep
from trainer.checkpoint.load import check_data, read_state
from trainer.checkpoint.save import save
from trainer.checkpoint.tensors import CheckpointError
from trainer.config import ConfigError


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model", LLAMA, dtype=torch.bfloat16)


@pytest.fixture
def checkpoints(tmp_path):
    return tmp_path / "run" / "checkpoints"


def test_what_is_saved_is_read_back_bit_for_bit(model, checkpoints):
    save(checkpoints, 3, contents(model, 3))
    assert_is(newest(checkpoints), 3)


def test_a_checkpoint_holds_what_transformers_needs(model, checkpoints):
    folder = save(checkpoints, 3, contents(model, 3))
    weights = load_file(folder / "model.safetensors")
    masters = {unit.prefix + name: s.master for unit in units() for name, s in state(3, unit).items()}
    assert set(weights) == set(masters)
    assert all(torch.equal(w.flatten(), masters[name].to(torch.bfloat16)) for name, w in weights.items())
    assert (folder / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_large_models_are_sharded_with_an_index(model, checkpoints, monkeypatch):
    monkeypatch.setattr(save_module, "SHARD_LIMIT_BYTES", 30_000)
    folder = save(checkpoints, 1, contents(model, 1))
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    found = {name: t for shard in set(index.values()) for name, t in load_file(folder / shard).items()}
    assert {name for name, shard in index.items() if name in load_file(folder / shard)} == set(found)
    assert_is(newest(checkpoints), 1)


def test_only_the_newest_are_kept(model, checkpoints):
    for step in (1, 2, 30, 4):
        save(checkpoints, step, contents(model, step))
        assert delete_all_but(checkpoints, 2) == []
    assert complete_steps(checkpoints) == [4, 30]
    assert len(list(checkpoints.iterdir())) == 2


def test_what_cannot_be_deleted_is_said_and_is_no_checkpoint(model, checkpoints, monkeypatch):
    for step in (1, 2, 3):
        save(checkpoints, step, contents(model, step))
    (checkpoints / ".tmp-file").touch()

    def busy(path, *args, **kwargs):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.shutil, "rmtree", busy)
        said = delete_all_but(checkpoints, 2)
        assert said == [f"{checkpoints / 'step-00000001'} could not be deleted: Device or resource busy"]
        assert complete_steps(checkpoints) == [2, 3]
        assert sweep(checkpoints) == said
        save(checkpoints, 4, contents(model, 4))
    assert sweep(checkpoints) == []
    assert sorted(path.name for path in checkpoints.iterdir()) == [f"step-0000000{n}" for n in (2, 3, 4)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["master", "exp_avg", "exp_avg_sq"])
def test_numbers_that_are_not_finite_are_not_saved(model, checkpoints, part, number):
    save(checkpoints, 1, contents(model, 1))

    def state_of(unit):
        states = state(2, unit)
        if unit.name == "model.norm":
            getattr(states["model.norm.weight"], part)[-1] = number
        return states

    with pytest.raises(NonFiniteStateError, match=f"model.norm.weight: {part} holds"):
        save(checkpoints, 2, replace(contents(model, 2), state=state_of))
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000001"]
    assert_is(newest(checkpoints), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_numbers_however_large_are_finite(dtype):
    limits = torch.finfo(dtype)
    assert is_finite(torch.tensor([limits.max, limits.min, 0.0, limits.tiny] * 9, dtype=dtype))
    assert not is_finite(torch.tensor([0.0] * 99 + [math.nan], dtype=dtype))


def test_a_model_that_is_gone_leaves_its_tokenizer(model, checkpoints):
    kept = contents(model, 1)
    tokenizer = (model / "tokenizer.json").read_bytes()
    shutil.rmtree(model)
    assert (save(checkpoints, 1, kept) / "tokenizer.json").read_bytes() == tokenizer


def test_saving_a_step_again_changes_nothing(model, checkpoints):
    folder = save(checkpoints, 1, contents(model, 1))
    before = (folder / MARKER).stat().st_mtime_ns
    assert save(checkpoints, 1, contents(model, 1)) == folder
    assert (folder / MARKER).stat().st_mtime_ns == before


def test_a_folder_without_its_marker_is_no_checkpoint_and_is_swept(model, checkpoints):
    save(checkpoints, 1, contents(model, 1))
    (save(checkpoints, 2, contents(model, 2)) / MARKER).unlink()
    (checkpoints / f"{TEMPORARY}{'0a' * 8}").mkdir()
    assert newest(checkpoints).step == 1
    assert sweep(checkpoints) == []
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000001"]


def test_no_folder_is_no_checkpoint(checkpoints):
    assert newest(checkpoints) is None


@pytest.mark.parametrize("file", ["optimizer/model.norm.safetensors", "model.safetensors", MARKER])
def test_a_file_that_was_cut_is_named(model, checkpoints, file):
    path = save(checkpoints, 1, contents(model, 1)) / file
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=file):
        newest(checkpoints)


def test_a_flipped_bit_is_found_when_it_is_read(model, checkpoints):
    path = save(checkpoints, 1, contents(model, 1)) / "optimizer" / "model.norm.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    norm = next(unit for unit in units() if unit.name == "model.norm")
    with pytest.raises(CheckpointError, match="not as it was written"):
        read_state(newest(checkpoints), norm)


def test_a_header_that_was_changed_is_found(model, checkpoints):
    path = save(checkpoints, 1, contents(model, 1)) / "optimizer" / "model.norm.safetensors"
    data = bytearray(path.read_bytes())
    data[9] ^= 4
    path.write_bytes(data)
    norm = next(unit for unit in units() if unit.name == "model.norm")
    with pytest.raises(CheckpointError, match="not as it was written") as found:
        read_state(newest(checkpoints), norm)
    assert "delete this checkpoint" in found.value.hint


def test_another_models_state_is_refused(model, checkpoints):
    save(checkpoints, 1, contents(model, 1))
    other = units()[0]
    wider = type(other)(other.name, other.prefix, (type(other.parameters[0])(other.parameters[0].name, (2, 3)),))
    with pytest.raises(CheckpointError, match=r"another model's state: model\.embed_tokens\.weight\.exp_avg"):
        read_state(newest(checkpoints), wider)


def test_other_data_is_refused(model, checkpoints):
    save(checkpoints, 1, contents(model, 1))
    check_data(newest(checkpoints), {"digest": "d"})
    with pytest.raises(ConfigError, match="was trained on d"):
        check_data(newest(checkpoints), {"digest": "e"})


class FullDisk:
    """Every system call that can meet a full disk, of which the `after`th and all later ones do."""

    def __init__(self, monkeypatch, after):
        self.left = after
        for module, name in ((os, "write"), (os, "fsync"), (os, "mkdir")):
            monkeypatch.setattr(module, name, self.failing(getattr(module, name)))

    def failing(self, call):
        def maybe(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **kwargs)

        return maybe


def test_a_disk_that_fills_at_any_call_leaves_the_checkpoint_before(model, checkpoints, monkeypatch):
    save(checkpoints, 1, contents(model, 1))
    calls = 0
    while newest(checkpoints).step == 1:
        with monkeypatch.context() as patch:
            FullDisk(patch, calls)
            with pytest.raises(CheckpointError, match="No space left"):
                save(checkpoints, 2, contents(model, 2))
        assert {p.name for p in checkpoints.iterdir()} <= {"step-00000001", "step-00000002"}
        calls += 1
    assert calls > 50
    assert_is(newest(checkpoints), 2)


def test_too_little_space_is_said_before_anything_is_written(model, checkpoints, monkeypatch):
    monkeypatch.setattr(save_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match="has 1,000 left"):
        save(checkpoints, 1, contents(model, 1))
    assert list(checkpoints.iterdir()) == []


def test_a_file_size_limit_is_an_error_and_leaves_nothing(model, checkpoints):
    save(checkpoints, 1, contents(model, 1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            save(checkpoints, 2, contents(model, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in checkpoints.iterdir()] == ["step-00000001"]


def test_an_error_of_a_unit_leaves_nothing(model, checkpoints):
    def broken(unit):
        raise ValueError("a worker died")

    good = contents(model, 1)
    bad = replace(good, state=broken)
    with pytest.raises(ValueError, match="a worker died"):
        save(checkpoints, 1, bad)
    assert list(checkpoints.iterdir()) == []


@pytest.mark.stress
def test_kill_at_any_moment_leaves_a_complete_checkpoint(model, checkpoints):
    step = 1
    with fork_server(save_forever.__module__) as server:
        for round_ in range(rounds(20, 60)):
            pid = server.start(f"{save_forever.__module__}:save_forever", str(model), str(checkpoints), str(step))
            said = [int(server.readline())]
            time.sleep(rounds(6, 2) * 0.001 * round_)
            os.kill(pid, signal.SIGKILL)
            said.extend(int(line) for line in server.lines())
            saved = newest(checkpoints)
            assert saved.step >= said[-1]
            assert_is(saved, saved.step)
            step = saved.step + 1
