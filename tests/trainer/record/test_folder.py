from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
from pathlib import Path

import pytest

from graphcache.store.files import TEMPORARY
from trainer.config import RunConfig
from trainer.record.folder import RunFolder, RunFolderError

SETTINGS = RunConfig(model=Path("m"), data=Path("d"), out=Path("o")).as_json()


def begun(root: Path, done: int = 0, **environment) -> RunFolder:
    folder = RunFolder(root)
    with folder.held(resume=True):
        folder.begin_session(SETTINGS, environment, done)
    return folder


def assert_refused(root: Path, match: str, *, resume: bool = False) -> None:
    """By `check` as by `held`."""
    with pytest.raises(RunFolderError, match=match):
        RunFolder(root).check(resume=resume)
    with pytest.raises(RunFolderError, match=match), RunFolder(root).held(resume=resume):
        pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_run_at_a_time(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.held(resume=False):
        assert_refused(tmp_path / "run", "another run holds")
    second.check(resume=False)
    with second.held(resume=False):
        pass


def test_a_file_system_without_locks_is_not_called_another_run(tmp_path, monkeypatch):
    def without_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(RunFolderError, match="lock cannot be locked: No locks"), RunFolder(tmp_path).held(resume=False):
        pass


def test_a_file_in_the_folders_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in ("file", "file/run", "file/a/run", "link"):
        assert_refused(tmp_path / out, f"{out} cannot be written: Not a directory")


def test_a_read_only_file_system_is_named():
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    read_only = [Path(point) for _, point, _, options, *_ in mounts if "ro" in options.split(",")]
    folder = next((point for point in read_only if point.is_dir()), None)
    if folder is None:
        pytest.skip("nothing is mounted read-only here")
    assert_refused(folder / "a-name-that-nobody-has", "cannot be written: Read-only file system")


def test_looking_makes_nothing(tmp_path):
    RunFolder(tmp_path / "a" / "run").check(resume=False)
    RunFolder(tmp_path).check(resume=True)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "files",
    [
        {"config.json": '{"model_type": "llama"}', "model.safetensors": ""},
        {"config.json": "no JSON"},
        {"config.json": "[]"},
        {"environment.json": "{}"},
        {"environment-0001.json": "{}"},
        {"calls.json": "{}", "lock": ""},
        {"steps.jsonl": ""},
        {"checkpoints/step-00000010/model.bin": ""},
    ],
    ids=lambda files: "+".join(files),
)
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, files, resume):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = names(tmp_path)
    assert_refused(tmp_path, "which no run has written", resume=resume)
    assert names(tmp_path) == before
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


@pytest.mark.parametrize("file", ["train.log", ".gitignore", "tensorboard/events", "package.json", "my-config.json"])
def test_other_files_may_lie_beside_a_run(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    RunFolder(tmp_path).check(resume=False)
    begun(tmp_path)
    assert (tmp_path / file).read_text() == "mine"


def test_a_run_that_was_killed_before_its_first_step_can_be_started_again(tmp_path):
    with RunFolder(tmp_path).held(resume=False):
        pass
    cut = tmp_path / f"{TEMPORARY}{'0a' * 16}"
    cut.write_text("{")
    with RunFolder(tmp_path).held(resume=False):
        assert not cut.exists()
    begun(tmp_path)
    RunFolder(tmp_path).check(resume=False)
    with RunFolder(tmp_path).held(resume=False):
        assert names(tmp_path) == {"lock", "config.json", "environment.json"}


def test_a_run_may_go_on_in_a_copy_of_its_checkpoints(tmp_path):
    (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000004" / "complete.json").write_text("{}")
    RunFolder(tmp_path).check(resume=True)


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path):
    begun(tmp_path).append_step({"step": 1})
    assert_refused(tmp_path, "holds a run already")
    RunFolder(tmp_path).check(resume=True)


def test_each_session_keeps_its_environment(tmp_path):
    for session in range(3):
        begun(tmp_path, threads=session)
    kept = ("environment-0001.json", "environment-0002.json", "environment.json")
    found = [json.loads((tmp_path / name).read_text()) for name in kept]
    assert found == [{"threads": session, "settings": SETTINGS} for session in range(3)]


def test_steps_after_the_checkpoint_and_lines_that_are_none_are_forgotten(tmp_path):
    folder = begun(tmp_path)
    for step in (1, 2, 3):
        folder.append_step({"step": step, "loss": 0.1 * step})
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('null\n[1]\n{"loss": 1}\n{"step": null}\n{"step": 4, "lo')
    assert [record["step"] for record in folder.steps()] == [1, 2, 3]
    begun(tmp_path, done=2).append_step({"step": 3})
    assert [json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_no_steps_yet(tmp_path):
    folder = RunFolder(tmp_path)
    folder.forget_steps_after(2)
    assert folder.steps() == []


def test_steps_are_synced_when_asked(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def recording(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    folder = RunFolder(tmp_path)
    monkeypatch.setattr(os, "fsync", recording)
    folder.append_step({"step": 1})
    assert synced == []
    folder.sync_steps()
    assert synced == [str(tmp_path / "steps.jsonl"), str(tmp_path)]


def test_the_umask_alone_decides_who_may_do_what(tmp_path):
    before = os.umask(0o007)
    try:
        folder = begun(tmp_path / "run")
        folder.append_step({"step": 1})
        folder.forget_steps_after(1)
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()} == dict.fromkeys(
        ("lock", "config.json", "environment.json", "steps.jsonl"), "0o660"
    )


def test_a_full_disk_names_the_file_and_leaves_it_as_it_was(tmp_path):
    """A limit on the size of files stands for a full disk: the write fails."""
    folder = begun(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunFolderError, match=r"config\.json cannot be written: File too large"):
            folder.write("config.json", SETTINGS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads((tmp_path / "config.json").read_text()) == SETTINGS
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))


def test_checkpoints_may_be_a_link_to_a_larger_disk(tmp_path):
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    RunFolder(tmp_path / "run").check(resume=False)
    with RunFolder(tmp_path / "run").held(resume=False):
        pass
    (tmp_path / "disk" / "step-00000001").mkdir()
    assert_refused(tmp_path / "run", "holds checkpoints, which no run has written")


def test_a_link_of_checkpoints_that_leads_nowhere_is_said_before_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    assert_refused(tmp_path / "run", "checkpoints leads nowhere")


def test_a_session_begins_without_the_prediction_of_the_one_before(tmp_path):
    folder = begun(tmp_path / "run")
    folder.write("prediction.json", {"measured_step_secs": 1.0})
    begun(tmp_path / "run")
    assert "prediction.json" not in names(tmp_path / "run")
