"""push and pull, and how build, diff and the trainer look into remotes: from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from graphcache.store.local import LocalStore
from tests.remote.conftest import fill
from tests.support.servers import s3_environment


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("GRAPHCACHE_REMOTE", raising=False)
    return str(tmp_path / "remote")


def invoke(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Any:
    assert run([*args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_push_then_pull(tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    store, there = LocalStore(tmp_path / "a"), str(tmp_path / "b")
    fill(store, 1, 2)
    facts = invoke(capsys, "push", "--cache", str(store.root), "--remote", remote)
    assert len(facts["pushed"]) == 2
    assert len(invoke(capsys, "pull", "--cache", there, "--remote", remote)["pulled"]) == 2
    assert run(["pull", "--cache", there, "--remote", remote]) == 0
    assert "present  2" in capsys.readouterr().out


def test_a_damaged_artifact_is_not_pushed(tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = LocalStore(tmp_path / "a")
    bad, good = fill(store, 1, 2)
    path = store.layout.object(bad.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    facts = invoke(capsys, "push", "--cache", str(store.root), "--remote", remote, code=1)
    assert (facts["damaged"], facts["pushed"]) == ([bad.key.digest], [good.key.digest])


def test_what_does_not_pass_there_is_not_pulled(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = LocalStore(remote)
    bad, good = fill(there, 1, 2)
    there.layout.object(bad.artifact_digest).unlink()
    facts = invoke(capsys, "pull", "--cache", str(tmp_path / "a"), "--remote", remote, code=1)
    assert (facts["bad"], facts["pulled"]) == ([bad.key.digest], [good.key.digest])


@pytest.mark.parametrize("command", ["push", "pull"])
def test_exactly_one_remote_is_needed(
    command: str, remote: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(capsys, command, "--cache", str(tmp_path), code=2)["error"]["name"] == "usage"
    two = ["--remote", remote, "--remote", "/other"]
    assert invoke(capsys, command, "--cache", str(tmp_path), *two, code=2)["error"]["name"] == "usage"


def test_a_dead_remote_is_an_error_without_a_traceback_or_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment(9).items():
        monkeypatch.setenv(name, value)
    fill(LocalStore(tmp_path / "a"), 1)
    assert run(["push", "--cache", str(tmp_path / "a"), "--remote", "s3://bucket/cache"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error[remote]: s3://bucket/cache: cannot list")
    assert "Traceback" not in shown.err
    assert "test-secret" not in shown.err + shown.out


def test_build_push_without_a_remote_is_an_error(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--shapes-from", "tests/data/smollm2-135m", "--cache", str(tmp_path), "--push"]
    assert "--push" in invoke(capsys, "build", *args, code=2)["error"]["message"]
