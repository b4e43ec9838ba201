"""How this graphcache is run again: the first words of the commands that are printed for people to copy."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from pathlib import Path

# Of the package, which need not be imported to be asked for.
OWN_FILE = Path(__file__).parents[1] / "__init__.py"
INSTALLED = ("graphcache",)
# `python -m` looks in the current folder first, the installed command never does.
IN_THIS_FOLDER = ("python", "-m", "cli.main")


def own_command() -> tuple[str, ...]:
    """`graphcache`, or `python -m cli.main` for a process that took this package from its current folder, a checkout,
    where the installed command would import another one, or none."""
    return INSTALLED if _same(_installed(), str(OWN_FILE)) else IN_THIS_FOLDER


def _installed() -> str | None:
    """The file of the package as it would be found without what Python puts first on its path: the current folder
    under `-m`, the script's otherwise."""
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        # Only this finder looks along the path; that of an editable install knows its place.
        along = path if finder is importlib.machinery.PathFinder else None
        spec: importlib.machinery.ModuleSpec | None = find_spec("graphcache", along) if find_spec else None
        if spec is not None:
            return spec.origin
    return None


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and os.path.realpath(one) == os.path.realpath(other)
