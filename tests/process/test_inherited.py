"""What commands inherit: signals, the current folder, variables, a user without a name; as processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from graphcache.process.inherited import VARIABLES
from tests.compiler.vendor import model

ROOT = Path(__file__).parents[2]
COMMANDS = [["-m", "cli.main", "ls"], ["-m", "trainer", "run", "--help"]]


def run(
    arguments: list[str], *, prelude: str = "", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command after a shell's `prelude`."""
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    shell = ("sh", "-c", f'{prelude}\nexec "$@"', "sh", sys.executable, *arguments)
    return subprocess.run(shell, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variable_that_nothing_reads_is_named(command: list[str], tmp_path: Path) -> None:
    done = run(command, GRAPHCACHE_DIR=str(tmp_path), GRAPHCACHE_DIRR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "warning[variable]: 'GRAPHCACHE_DIRR' is set, and nothing reads it" in done.stderr
    assert "GRAPHCACHE_DIR," in done.stderr, "what it may have been meant for"
    assert "warning" not in run(command, GRAPHCACHE_DIR=str(tmp_path), GRAPHCACHE_TEST_X="1").stderr


def test_all_variables_that_are_read_are_known() -> None:
    files = [path for top in ("graphcache", "cli", "trainer") for path in (ROOT / top).rglob("*.py")]
    found = {name for path in files for name in re.findall(r'"(GRAPHCACHE_[A-Z0-9_]*[A-Z0-9])"', path.read_text())}
    own = (ROOT / "graphcache/process/inherited.py").read_text()
    assert found - set(re.findall(r'"(GRAPHCACHE_\w+)"', own)) == set()
    assert found >= VARIABLES


@pytest.mark.parametrize("command", COMMANDS)
def test_a_deleted_current_folder_is_said(command: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run(command, prelude="rmdir ../gone", cwd=gone, GRAPHCACHE_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "error[machine]: the current folder cannot be told: No such file or directory" in done.stderr
    assert "cd to one that is there" in done.stderr
    assert "Traceback" not in done.stderr


def under_ignored_sigchld(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As cron wrappers and some supervisors start commands."""
    ignore = "import signal, os, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, {!r})"
    return run(["-c", ignore.format([sys.executable, *arguments])], cwd=cwd)


def test_exit_codes_come_back_under_an_ignored_sigchld(tmp_path: Path) -> None:
    put_right = (
        "import signal, subprocess; from graphcache.process.inherited import put_right; put_right();"
        "print(subprocess.run(['false']).returncode)"
    )
    assert under_ignored_sigchld("-c", put_right, cwd=tmp_path).stdout == "1\n"


def test_no_revision_is_an_error_under_an_ignored_sigchld() -> None:
    """git's exit code was 0, its empty answer was the index, and all was well."""
    manifest = "cache_manifests/smollm2-135m-adamw.json"
    diff = ("-m", "cli.main", "diff", "--manifest", manifest, "--since", "nosuchrev")
    done = under_ignored_sigchld(*diff, cwd=ROOT)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "'nosuchrev' is no revision of" in done.stderr


def test_no_folder_for_temporary_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only root: stood for by folders that are none, since root may write anywhere."""
    code = (
        "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc/none', '/sys/none']\n"
        "import click, sys\n"
        "from graphcache.process.command import run_command_line\n"
        "from graphcache.process.scratch import scratch_folder\n"
        "group = click.Group()\n"
        "@group.command()\n"
        "def make():\n    with scratch_folder(): pass\n"
        "sys.exit(run_command_line(group, 'p', ['make']))"
    )
    done = run(["-c", code])
    assert done.returncode == 2
    assert "error[machine]: no folder for temporary files can be written" in done.stderr
    assert "set TMPDIR" in done.stderr


# What a container's user has that is none of the image's: no line in passwd, no variables, a home that it may write.
NO_ONE = 54_321


@pytest.fixture
def as_no_one(tmp_path: Path) -> tuple[str, ...]:
    """The beginning of a command line under a uid without a passwd line, which may read all files, as in an image."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("needs root, and setpriv of util-linux")
    os.chown(tmp_path, NO_ONE, NO_ONE)
    for folder in tmp_path.parents:
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)  # pytest makes them for their owner alone
    ids = ("setpriv", f"--reuid={NO_ONE}", f"--regid={NO_ONE}", "--clear-groups")
    capability = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return (*ids, *capability, "env", "-i", f"PATH={os.environ['PATH']}", f"HOME={tmp_path}", f"PYTHONPATH={ROOT}")


def started(command: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_doctor_works_for_a_user_without_a_name(as_no_one: tuple[str, ...]) -> None:
    done = started(as_no_one, "-m", "cli.main", "doctor")
    assert re.search(r"^ok +vendor +furiosa-torch .*, compiler \w+$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.compiler
def test_a_build_and_its_check_work_for_a_user_without_a_name(as_no_one: tuple[str, ...], tmp_path: Path) -> None:
    sample = model(tmp_path / "sample", (64, 64))
    build = ("-m", "cli.main", "build", "--shapes-from", str(sample), "--only", "adamw", "--jobs", "1")
    done = started(as_no_one, *build)
    assert done.returncode == 0, done.stdout + done.stderr
    # By the host executor, which the emulator is too.
    proof = started(as_no_one, "-m", "cli.main", "prove", "--again")
    assert proof.returncode == 0, proof.stdout + proof.stderr
    assert "proven" in proof.stdout


def test_a_failed_import_is_not_blamed_on_the_fusion(as_no_one: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "from graphcache.vendor import layouts\n"
        "layouts.name_the_user = lambda: None  # as before\n"
        "from graphcache.runtime.furiosa import set_fusion\n"
        "try:\n    set_fusion(8)\n"
        "except Exception as error:\n    print(type(error).__name__, error.message, error.hint)\n"
    )
    said = started(as_no_one, "-c", code).stdout
    assert said.startswith("ToolchainError "), said
    assert f"KeyError: 'getpwuid(): uid not found: {NO_ONE}'" in said
    assert "PEs" not in said
    assert "once in a process" not in said
