"""Helper processes: Pythons of their own that import torch, the vendor or graphs' code, so that this one need not.

All are started alike. What they are given could reach a program or an artifact without being in its key: the vendor's
compiler alone reads dozens of environment variables (`SKIP_BEAM_SEARCH`, `NPU_COMPILER_CONFIG_PATH`). So they get the
few variables below and no other, and the modules that this process would import and no other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from graphcache.vendor import layouts as vendor

if TYPE_CHECKING:
    import subprocess

# Where programs, libraries and the user's files are, how text is written, how many threads there may be.
PASSED_ON = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"}
    | {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "RAYON_NUM_THREADS"}
)
_LOCALE = "LC_"
# Of a helper's private folder, where its temporary files are.
TEMPORARY = "tmp"


def helper_command(module: str) -> tuple[str, ...]:
    """Runs `module` as a program. `-P` keeps out the current folder, where a downloaded checkpoint may lie."""
    return (sys.executable, "-P", "-m", module)


def helper_environment(folder: Path | None = None) -> dict[str, str]:
    """All that a helper process sees of the environment; no torch in it loads the vendor's backend by itself.

    folder: made a private place for whatever the vendor caches or leaves behind
    """
    passed = {n: v for n, v in os.environ.items() if n in PASSED_ON or n.startswith(_LOCALE)}
    private = {}
    if folder is not None:
        temporary = folder / TEMPORARY
        temporary.mkdir()
        private = {
            "XDG_CACHE_HOME": str(folder / "xdg-cache"),
            "TMPDIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(temporary / "torchinductor"),
        }
    return {
        **passed,
        **private,
        vendor.AUTOLOAD_VARIABLE: "0",
        # The modules that this process hashes, wherever it was started. An empty entry would be the current folder.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path if place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def take_stdout() -> IO[bytes]:
    """What stdout is, for answers alone: what Python or native code prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a process wrote to stderr, which says why it ended; its exit code when it wrote none."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
