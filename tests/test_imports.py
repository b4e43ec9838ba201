"""The rules of docs/architecture.md about who imports whom, and who does without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The folders that export, compile or start those who do. A trainer may reach none of them, so it cannot compile.
COMPILING = ("graphcache.build", "graphcache.export", "graphcache.toolchain", "graphcache.verify")
# Modules that run inside an export or a compile, where torch is loaded anyway.
NEED_TORCH = (
    "graphcache.build.check",
    "graphcache.build.prover",
    "graphcache.build.worker",
    "graphcache.device",
    "graphcache.export.program",
    "graphcache.export.recommend",
    "graphcache.export.source_lines",
    "graphcache.export.torch_state",
    "graphcache.proof.bounds",
    "graphcache.proof.check",
    "graphcache.proof.inputs",
    "graphcache.proof.rules",
    "graphcache.runtime.refusal",
    "graphcache.toolchain.furiosa",
    "graphcache.toolchain.refused_source",
)
HEAVY = ("torch", "numpy", "rich", "transformers", "fsspec", "asyncio")
# What only a remote needs.
NEED_FSSPEC = ("graphcache.remote",)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, anywhere in it: `from a.b import c` counts as `a.b` and `a.b.c`."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


@pytest.mark.parametrize("path", modules("graphcache"), ids=dotted)
def test_graphcache_imports_neither_trainer_nor_cli(path: Path) -> None:
    assert not [m for m in imports(path) if within(m, ("trainer", "cli", "tests"))]


@pytest.mark.parametrize("path", modules("trainer"), ids=dotted)
def test_the_trainer_cannot_reach_the_compiler(path: Path) -> None:
    assert not [m for m in imports(path) if within(m, (*COMPILING, "cli", "tests"))]


@cache
def our_files() -> dict[str, Path]:
    return {dotted(p): p for package in ("graphcache", "trainer", "cli") for p in modules(package)}


@cache
def reach(start: str) -> set[str]:
    """Every module of ours that importing `start` can load, directly or not."""
    files = our_files()
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in files and name not in found:
            found.add(name)
            todo.extend(imports(files[name]))
    return found


def test_no_module_imports_itself_through_others() -> None:
    """Imports for types only count too."""
    for name, path in our_files().items():
        below = {m for m in imports(path) if m in our_files() and m != name}
        assert name not in {m for each in below for m in reach(each)}, name


def test_not_even_through_others_does_the_trainer_reach_the_compiler() -> None:
    for path in modules("trainer"):
        assert not [m for m in reach(dotted(path)) if within(m, COMPILING)], path


@pytest.mark.parametrize("path", [p for n in ("graphcache", "trainer", "cli") for p in modules(n)], ids=dotted)
def test_one_file_names_the_vendors_modules(path: Path) -> None:
    if dotted(path) == "graphcache.vendor.layouts":
        return
    assert not [m for m in imports(path) if within(m, ("furiosa",))]
    text = path.read_text()
    assert "furiosa.torch" not in text
    assert "native_torch" not in text


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter holds after running `code`."""
    check = f"{code}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    return set(ast.literal_eval(run.stdout.splitlines()[-1]))


def test_every_module_but_the_exporting_ones_imports_without_torch() -> None:
    names = [dotted(p) for p in modules("graphcache") if not within(dotted(p), (*NEED_TORCH, *NEED_FSSPEC))]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


def test_opening_a_cache_without_a_remote_imports_nothing_of_remotes() -> None:
    code = "from graphcache.remote.opening import open_store\nopen_store('/nowhere', ())"
    assert loaded_after(code) == set()


def test_a_remote_that_is_not_asked_is_not_opened() -> None:
    code = (
        "from graphcache.remote.opening import open_store\nfrom graphcache.remote.url import parse\n"
        "open_store('/nowhere', [parse('s3://bucket/cache')], push=True).bring([])"
    )
    assert loaded_after(code) == {"asyncio"}


def test_a_folder_as_a_remote_needs_no_fsspec() -> None:
    code = (
        "from graphcache.remote.opening import open_store\nfrom graphcache.remote.url import parse\n"
        "open_store('/nowhere', [parse('/elsewhere')]).bring_answers(['0' * 64])"
    )
    assert loaded_after(code) == {"asyncio"}


def test_no_command_needs_torch_to_start() -> None:
    names = [dotted(p) for p in modules("cli")]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


def test_no_catalog_needs_torch() -> None:
    names = [dotted(p) for p in modules("trainer/catalogs")]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


@pytest.mark.parametrize("argv", [["--help"], ["diff", "--help"], ["build", "--help"]], ids=" ".join)
def test_help_needs_no_torch(argv: list[str]) -> None:
    assert loaded_after(f"from cli.main import run\nassert run({argv!r}) == 0") == set()
