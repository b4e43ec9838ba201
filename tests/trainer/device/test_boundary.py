"""The trainer touches device memory nowhere, and buffers of the host in trainer/device alone: read off its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainer

TRAINER = Path(trainer.__file__).parent
OUTSIDE = sorted(p for p in TRAINER.rglob("*.py") if TRAINER / "device" not in p.parents)
RUNTIME = ("graphcache.runtime.furiosa", "graphcache.runtime.refusal", "graphcache.vendor.layouts", "furiosa")


def touches(source: str) -> list[str]:
    return sorted({what for node in ast.walk(ast.parse(source)) for what in _touches(node)})


def _touches(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(attr="_payload"):
            yield "reads a buffer's payload"
        case ast.Attribute(value=ast.Name(id="torch"), attr="device" | "accelerator"):
            yield "names a torch device"
        case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant(value=str(name)), *_]):
            yield f"moves a tensor to {name}"
        case ast.keyword(arg="device", value=ast.Constant(value=str(name))) if name != "meta":
            yield f"makes a tensor on {name}"
        case ast.Import(names=names):
            yield from (f"imports {n.name}" for n in names if n.name.startswith(RUNTIME))
        case ast.ImportFrom(module=str(module), names=names):
            whole = [f"{module}.{n.name}" for n in names]
            yield from (f"imports {n}" for n in [module, *whole] if n.startswith(RUNTIME))
        case ast.ClassDef(bases=bases):
            yield from (f"derives from {b.id}" for b in bases if isinstance(b, ast.Name) and b.id == "Buffer")


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(TRAINER)))
def test_the_rest_of_the_trainer_touches_no_device_memory(path: Path) -> None:
    assert touches(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = buffer._payload + 1", "reads a buffer's payload"),
        ("t.to('furiosa:0')", "moves a tensor to furiosa:0"),
        ("torch.zeros(2, device='rngd')", "makes a tensor on rngd"),
        ("d = torch.device(name)", "names a torch device"),
        ("from graphcache.runtime import furiosa", "imports graphcache.runtime.furiosa"),
        ("import furiosa.torch", "imports furiosa.torch"),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, found: str) -> None:
    assert touches(source) == [found]


def test_the_search_looks_at_the_whole_trainer() -> None:
    assert len(OUTSIDE) > 30
