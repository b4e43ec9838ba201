"""What helper processes are given: nothing that could reach a program or an artifact without being in a key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphcache.process.helper import helper_command, helper_environment

# Read by the vendor's compiler, torch, gcc or Python.
READ = ("SKIP_BEAM_SEARCH", "NPU_GLOBAL_CONFIG_PATH", "NPU_COMPILER_CONFIG_PATH", "TACTIC_COST", "FURIOSA_LOG")
READ += ("TORCH_LOGS", "CPATH", "GCC_EXEC_PREFIX", "PYTHONSTARTUP", "PYTHONHASHSEED", "XDG_CACHE_HOME")


def test_what_a_compiler_reads_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READ:
        monkeypatch.setenv(name, "1")
    assert not helper_environment().keys() & set(READ)


def test_what_programs_need_to_run_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.setenv(name, f"/the/{name}")
        assert helper_environment()[name] == f"/the/{name}"


def test_a_folder_hides_the_users_caches(tmp_path: Path) -> None:
    environment = helper_environment(tmp_path)
    assert environment["XDG_CACHE_HOME"].startswith(str(tmp_path))
    assert Path(environment["TMPDIR"]).parent == tmp_path
    assert Path(environment["TMPDIR"]).is_dir()


def test_the_current_folder_is_on_no_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "subprocess.py").write_text("raise SystemExit('code of the current folder was run')\n")
    (tmp_path / "a_helper.py").write_text("import subprocess\nimport graphcache\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert "" not in helper_environment()["PYTHONPATH"].split(os.pathsep)
    command = helper_command("a_helper")
    done = subprocess.run(command, env=helper_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
