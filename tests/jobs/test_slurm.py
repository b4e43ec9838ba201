"""The printed script on a real Slurm of one node, on loopback: tasks of an array take their shards, one is requeued."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from graphcache.manifest.file import read_manifest
from graphcache.store.local import LocalStore
from graphcache.verify.integrity import verify

MANIFEST = Path(__file__).parents[2] / "cache_manifests" / "smollm2-135m-adamw.json"
DAEMONS = ("munged", "slurmctld", "slurmd")

CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={megabytes} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def start(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of this machine; its folder is short, since a socket's path is."""
    missing = [name for name in DAEMONS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if os.geteuid() != 0:
        pytest.skip("slurmd runs as root")
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}; ./dev installs slurm-wlm and munge")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    folder = Path("/tmp") / f"slurm-{os.getpid()}"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host, ports = socket.gethostname().split(".")[0], (free_port(), free_port())
    facts = {"folder": folder, "host": host, "user": "root", "ports": ports}
    (folder / "slurm.conf").write_text(CONFIG.format(**facts, cpus=os.cpu_count(), megabytes=20000))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    sockets = (f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key", f"--pid-file={folder}/munge.pid")
    logs = (f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed", "--num-threads=2", "--force")
    try:
        start("munged", *sockets, *logs)
        start("slurmctld", "-c")
        start("slurmd")
        yield folder
    finally:
        subprocess.run(["scancel", "--full", "--user=root"], check=False, timeout=60)
        subprocess.run(["scontrol", "shutdown"], check=False, timeout=60)
        subprocess.run(["munged", *sockets[:1], "--stop"], check=False, timeout=60, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


def jobs(*states: str) -> list[str]:
    """Tasks in these states; without any, those that have not ended."""
    chosen = [f"--states={','.join(states)}"] if states else []
    shown = subprocess.run(
        ["squeue", "--noheader", "--array", *chosen, "--format=%i"],
        check=True, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    return shown.stdout.split()


@pytest.mark.compiler
def test_an_array_fills_a_shared_cache_and_a_requeued_task_goes_on(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    args = ["job", "slurm", "--shapes-from", str(MANIFEST), "--only", "adamw", "--shards", "2", "--volume", str(cache)]
    assert run(args) == 0
    # This machine is smaller than a node: tasks wait for each other.
    script = capsys.readouterr().out.replace("--cpus-per-task=2", "--cpus-per-task=1")
    subprocess.run(["sbatch", f"--chdir={tmp_path}", "--mem=6G"], input=script, text=True, check=True, timeout=60)
    until = time.monotonic() + 400
    while not jobs("RUNNING"):
        assert time.monotonic() < until
        time.sleep(0.2)
    subprocess.run(["scontrol", "requeue", jobs("RUNNING")[0]], check=True, timeout=60)
    # A job that was requeued is held back for a while; no pause is longer than the controller's.
    while jobs():
        for job in jobs("PENDING"):
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False, timeout=60)
        assert time.monotonic() < until, [p.read_text() for p in tmp_path.glob("*.log")]
        time.sleep(1)
    monkeypatch.setenv("GRAPHCACHE_SHARED", "1")
    report = verify(LocalStore(cache))
    assert report.sound
    wanted = {each.key.digest for each in read_manifest(MANIFEST).graphs if each.key}
    assert {entry.key.digest for entry in report.entries} == wanted, [p.read_text() for p in tmp_path.glob("*.log")]
