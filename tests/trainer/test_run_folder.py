from __future__ import annotations

import json
import os

import pytest

from trainer.run_folder import RunFolder, RunFolderError


def test_one_run_at_a_time(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.held(), pytest.raises(RunFolderError, match="another run holds"), second.held():
        pass
    with second.held():
        pass


def test_a_file_in_the_folders_place_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(tmp_path / "run").held():
        pass


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path):
    folder = RunFolder(tmp_path)
    folder.check_unused()
    folder.append_step({"step": 1})
    with pytest.raises(RunFolderError, match="holds a run already"):
        folder.check_unused()


def test_steps_after_the_checkpoint_and_a_line_that_was_cut_are_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_step({"step": step, "loss": 0.1 * step})
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in folder.steps()] == [1, 2, 3]
    folder.forget_steps_after(2)
    folder.append_step({"step": 3})
    assert [json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_no_steps_yet(tmp_path):
    folder = RunFolder(tmp_path)
    folder.forget_steps_after(2)
    assert folder.steps() == []


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunFolderError, match=r"config\.json: No space left"):
        RunFolder(tmp_path).write("config.json", {})
