"""The rules of docs/architecture.md about who imports whom, and who does without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What a trainer may not reach, so that it cannot compile: everything that exports, compiles or starts those who do.
COMPILING = ("build", "check", "exporting", "numeric", "pool", "program", "rebuild", "toolchain", "worker")
# Modules that run inside an export or a compile, where torch is loaded anyway.
NEED_TORCH = tuple(
    f"graphcache.{n}"
    for n in (
        "check",
        "inputs",
        "numeric",
        "program",
        "runtime.refusal",
        "source_lines",
        "toolchain.blame",
        "toolchain.furiosa",
        "torch_state",
        "worker",
    )
)
HEAVY = ("torch", "numpy", "rich", "transformers")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it: `from a.b import c` counts as `a.b` and `a.b.c`."""
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
    forbidden = tuple(f"graphcache.{name}" for name in COMPILING)
    assert not [m for m in imports(path) if within(m, (*forbidden, "cli", "tests"))]


def reach(start: str) -> set[str]:
    """Every module of ours that importing `start` can load, directly or not."""
    files = {dotted(p): p for package in ("graphcache", "trainer", "cli") for p in modules(package)}
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in files and name not in found:
            found.add(name)
            todo.extend(imports(files[name]))
    return found


def test_not_even_through_others_does_the_trainer_reach_the_compiler() -> None:
    forbidden = tuple(f"graphcache.{name}" for name in COMPILING)
    for path in modules("trainer"):
        assert not [m for m in reach(dotted(path)) if within(m, forbidden)], path


@pytest.mark.parametrize("path", [p for n in ("graphcache", "trainer", "cli") for p in modules(n)], ids=dotted)
def test_one_file_names_the_vendors_modules(path: Path) -> None:
    if dotted(path) == "graphcache.vendor":
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
    names = [dotted(p) for p in modules("graphcache") if not within(dotted(p), NEED_TORCH)]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


def test_no_command_needs_torch_to_start() -> None:
    names = [dotted(p) for p in modules("cli")]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


def test_no_catalog_needs_torch() -> None:
    names = [dotted(p) for p in modules("trainer/catalogs")]
    assert loaded_after("\n".join(f"import {n}" for n in names)) == set()


@pytest.mark.parametrize("argv", [["--help"], ["diff", "--help"], ["build", "--help"]], ids=" ".join)
def test_help_needs_no_torch(argv: list[str]) -> None:
    assert loaded_after(f"from cli.main import run\nassert run({argv!r}) == 0") == set()
