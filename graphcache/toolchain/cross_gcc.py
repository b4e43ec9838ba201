"""The cross compiler that the vendor's compiler calls for its last stage: whether it is there, works, and its version.

Without its C library's headers each compile fails at its very end, after minutes, so it is tried before any starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from graphcache.errors import ToolchainError
from graphcache.local.memo import Memo
from graphcache.process.helper import helper_environment, last_words
from graphcache.vendor import layouts as vendor

# The second one has the headers; apt leaves it out under --no-install-recommends.
PACKAGES = ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross")
HINT = f"Debian and Ubuntu: apt-get install {' '.join(PACKAGES)}"
# Those of the C library that the vendor's last stage includes.
PROBE = "#include <assert.h>\n#include <stdint.h>\n#include <string.h>\n"


def cross_gcc_path() -> str:
    """Raises ToolchainError when it is not on PATH: a compile would fail at its end and name nothing."""
    path = shutil.which(vendor.CROSS_GCC)
    if path is None:
        raise ToolchainError(
            f"{vendor.CROSS_GCC} is not on PATH; the compiler calls it for its last stage",
            hint=HINT,
        )
    return path


def cross_gcc_version(memo: Memo) -> str:
    """`12.2.0`. Raises ToolchainError, saying what to install, unless the compiler is there and finds its headers.

    Remembered as long as the program file and each header that it read stay as they are; a failure never is.
    """
    path = cross_gcc_path()
    key = f"cross-gcc 2 {os.path.realpath(path)} {_stamp(path)}"
    known = _still_true(memo.get(key))
    if known:
        return known
    version, headers = _ask_version(path), _read_headers(path)
    memo.set(key, {"version": version, "headers": {header: _stamp(header) for header in headers}})
    return version


def _still_true(row: Any) -> str:
    """The version in what was remembered, unless a header has changed or gone since; else empty."""
    match row:
        case {"version": str() as version, "headers": dict() as headers} if headers:
            return version if all(stamp and stamp == _stamp(header) for header, stamp in headers.items()) else ""
        case _:
            return ""


def _stamp(path: str) -> str:
    """What changes with a file; empty when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _ask_version(path: str) -> str:
    # Older releases print their full version for the second option only.
    done = _run(path, "-dumpfullversion", "-dumpversion")
    version = done.stdout.strip()
    if done.returncode or not version:
        raise ToolchainError(f"{path} does not tell its version: {done.stderr.strip() or done.returncode}", hint=HINT)
    return version


def _read_headers(path: str) -> Sequence[str]:
    """The files that a compile of PROBE reads. Raises ToolchainError when one is missing."""
    done = _run(path, "-x", "c", "-fsyntax-only", "-MD", "-MF", "/dev/stdout", "-", text=PROBE)
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error: " in line), last_words(done))
        raise ToolchainError(f"{path} cannot compile C for a card: {error.strip()}", hint=HINT)
    # A rule of a makefile: `-: /usr/.../assert.h \`.
    return shlex.split(done.stdout.replace("\\\n", " ").partition(":")[2])


def _run(path: str, *options: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [path, *options],
            input=text,
            env={**helper_environment(), "LC_ALL": "C"},  # what the compiler sees, which calls it
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ToolchainError(f"{path} cannot be run: {error.strerror or error}", hint=HINT) from error
