"""Which graphcache this is: its release, and the commit where it is run from a git checkout."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

from graphcache.process.own_command import OWN_FILE
from graphcache.source.checkout import checkout

# Git answers in milliseconds; a file system that does not is not waited for.
GIT_SECS = 5
DIGITS = "12"


def version_text(package: Path = OWN_FILE) -> str:
    """`0.1.0`, or `0.1.0 (commit 3f2a91c04b7e)`, with `, edited` where files of the checkout differ from it."""
    release = version("graphcache")
    repository = checkout(package.parent)
    # What is installed into an environment that lies in some other project's checkout is not of that project.
    if repository is None or repository != package.parent.parent:
        return release
    commit = _git(repository, "rev-parse", f"--short={DIGITS}", "HEAD")
    if not commit:
        return release
    edited = _git(repository, "status", "--porcelain", "--untracked-files=no")
    return f"{release} (commit {commit}{', edited' if edited else ''})"


def _git(repository: Path, *args: str) -> str:
    """What git prints; empty where there is no git, or it refuses."""
    command = ["git", "-C", str(repository), *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
