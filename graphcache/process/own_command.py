"""How this graphcache is run again: the first words of the commands that are printed for people to copy."""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
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


def build_command(
    model: str,
    catalogs: Iterable[str],
    *,
    options: Mapping[str, object] | None = None,
    fusion: object = None,
    cache: str | os.PathLike[str] | None = None,
    remotes: Iterable[str] = (),
    manifest: str | os.PathLike[str] | None = None,
) -> str:
    """The command that compiles what a cache lacks, for people to copy. What is None or empty is left out.

    model: what `--shapes-from` names; options: as `graphcache.catalog.CatalogOptions.as_json` names them
    """
    words = [*own_command(), "build", "--shapes-from", model, "--only", ",".join(catalogs)]
    words += option_words({**(options or {}), "fusion": fusion})
    words += ["--cache", os.fspath(cache)] if cache else []
    words += [word for url in remotes for word in ("--remote", url)]
    return shlex.join([*words, *(["--manifest", os.fspath(manifest)] if manifest else [])])


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options as a command line has them: fields of CatalogOptions, and `catalog.option` of single catalogs."""
    words: list[str] = []
    for name, value in options.items():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{name}={text}"] if "." in name else [f"--{name.replace('_', '-')}", text]
    return words


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
