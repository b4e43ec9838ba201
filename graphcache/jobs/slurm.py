"""A Slurm batch script: an array job whose tasks fill the cache."""

from __future__ import annotations

import shlex

from graphcache.jobs.request import JobRequest


def script(request: JobRequest) -> str:
    """What to give to sbatch. A task that its node loses, or that is preempted, is put into the queue again."""
    minutes = -(-request.deadline_secs // 60)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={request.name}",
        f"#SBATCH --array=0-{request.shards - 1}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=2",
        f"#SBATCH --mem={request.memory_gib}G",
        f"#SBATCH --time={minutes}",
        "#SBATCH --requeue",
        f"#SBATCH --output={request.name}-%a.log",
        "#SBATCH --open-mode=append",
        "set -euo pipefail",
    ]
    if request.volume:
        lines += [f"export GRAPHCACHE_DIR={shlex.quote(request.volume)}", "export GRAPHCACHE_SHARED=1"]
    else:
        lines += ['export GRAPHCACHE_DIR="${TMPDIR:-/tmp}/graphcache-$SLURM_JOB_ID"']
    # exec: the build gets Slurm's signals, and its exit code is the task's.
    return "\n".join([*lines, f"exec {shlex.join(request.command)}", ""])
