"""What `graphcache job` prints: valid for Kubernetes by its published schemas, and safe by its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.main import run

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "cache_manifests" / "smollm2-135m-adamw.json")
VERSION = "1.33"
KUBERNETES = ["job", "kubernetes", "--shapes-from", MODEL, "--image", "registry.example/graphcache:1"]
S3 = ["--remote", "s3://bucket/cache", "--secret", "s3-credentials"]


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 0
    return capsys.readouterr().out


def jobs(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    found = [each for each in yaml.safe_load_all(printed(capsys, *KUBERNETES, *more)) if each]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each for each in found}


def containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    pod = job["spec"]["template"]["spec"]
    return [*pod["containers"], *pod.get("initContainers", [])]


@pytest.mark.parametrize("place", [S3, ["--volume", "graphs"]], ids=["remote", "volume"])
def test_the_objects_are_valid(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = jobs(capsys, *place, "--train", "--model /m --data /d --out /o", "--cards", "2", "--namespace", "ml")
    assert list(found) == ["preflight", "build", "train"]
    for job in found.values():
        kubernetes_validate.validate(job, VERSION, strict=True)


def test_a_build_pod_asks_for_no_card_and_may_do_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    found = jobs(capsys, *S3, "--train", "--model /m --data /d --out /o", "--cards", "2")
    for part, job in found.items():
        pod = job["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in containers(job):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            cards = container["resources"]["limits"].get("furiosa.ai/rngd")
            assert cards == ("2" if container["name"] == "train" else None), part


def test_the_index_names_the_shard(capsys: pytest.CaptureFixture[str]) -> None:
    spec = jobs(capsys, *S3, "--shards", "2")["build"]["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 2)
    words = spec["template"]["spec"]["containers"][0]["command"]
    assert words[words.index("--shard") + 1] == "auto/2"
    assert words[-3:] == ["--remote", "s3://bucket/cache", "--push"]
    assert spec["backoffLimitPerIndex"] > 0
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["ttlSecondsAfterFinished"] > 0


def test_there_are_no_more_shards_than_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs(capsys, *S3, "--shards", "1000")["build"]["spec"]["completions"] < 100


def test_secrets_are_named_and_never_held(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    text = printed(capsys, *KUBERNETES, *S3)
    assert "hunter2" not in text
    assert "s3-credentials" in text


def test_the_trainer_is_checked_before_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model /m --data '/my data' --out /o"
    job = jobs(capsys, *S3, "--train", words)["train"]
    check, run_ = job["spec"]["template"]["spec"]["initContainers"][0], containers(job)[0]
    assert check["command"] == [
        "python",
        "-m",
        "trainer",
        "check",
        "--model",
        "/m",
        "--data",
        "/my data",
        "--out",
        "/o",
    ]
    assert run_["command"][3:5] == ["run", "--model"]
    for container in (check, run_):
        assert {"name": "GRAPHCACHE_REMOTE", "value": "s3://bucket/cache"} in container["env"]


@pytest.mark.parametrize(
    "args",
    [
        [*KUBERNETES],
        [*KUBERNETES, *S3, "--volume", "graphs"],
        [*KUBERNETES, "--remote", "https://host/cache"],
        [*KUBERNETES, "--remote", "s3://key:secret@bucket/cache"],
        [*KUBERNETES, *S3, "--name", "Not A Name"],
        ["job", "kubernetes", "--shapes-from", MODEL, *S3],
        ["job", "mesos", "--shapes-from", MODEL, *S3],
    ],
)
def test_what_cannot_work_is_an_error(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*args, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["name"] == "usage"


def test_a_slurm_script_is_an_array_that_shares_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import subprocess

    text = printed(capsys, "job", "slurm", "--shapes-from", MODEL, "--volume", "/shared/my cache", "--shards", "2")
    assert "#SBATCH --array=0-1\n" in text
    assert "export GRAPHCACHE_DIR='/shared/my cache'\n" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    # As Slurm runs it, but for the program: what it would execute.
    (tmp_path / "graphcache").write_text('#!/bin/bash\nprintf "%s\\n" "$GRAPHCACHE_DIR" "$@"\n')
    (tmp_path / "graphcache").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    shown = subprocess.run(["bash"], input=text, text=True, check=True, env=env, capture_output=True).stdout
    assert shown.splitlines()[0] == "/shared/my cache"
    assert shown.splitlines()[-2:] == ["--shard", "auto/2"]
