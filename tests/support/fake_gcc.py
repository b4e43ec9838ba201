"""A cross gcc that is a shell script: it tells a version, and compiles as long as its one header is there."""

from __future__ import annotations

from pathlib import Path

from graphcache.vendor import layouts as vendor

SCRIPT = """#!/bin/sh
echo "$1" >>{folder}/asked
case $1 in
-dump*) echo {version} ;;
*) test -e {folder}/assert.h || {{ echo '<stdin>:1:10: fatal error: assert.h: No such file or directory' >&2; exit 1; }}
   printf '%s\\\\\\n' '-: {folder}/assert.h ' ;;
esac
"""


def write_gcc(folder: Path, version: str, *, headers: bool = True) -> Path:
    """Puts it into `folder`, as the name that is looked for."""
    folder.mkdir(exist_ok=True)
    path = folder / vendor.CROSS_GCC
    path.write_text(SCRIPT.format(folder=folder, version=version))
    path.chmod(0o755)
    if headers:
        header(folder).touch()
    return path


def header(folder: Path) -> Path:
    return folder / "assert.h"


def asked(folder: Path) -> int:
    """How often it was run."""
    place = folder / "asked"
    return len(place.read_text().splitlines()) if place.exists() else 0
