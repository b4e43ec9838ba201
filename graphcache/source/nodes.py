"""Parts of a syntax tree as canonical text, whatever names mean: fields, arguments, constants."""

from __future__ import annotations

import ast
from collections.abc import Callable

# Fields that say nothing about what a program does, or that are written apart.
_LEFT_OUT = {"annotation", "ctx", "decorator_list", "kind", "returns", "simple", "type_comment", "type_params"}


def fields_text(
    node: ast.AST,
    write: Callable[[ast.AST], str],
    write_block: Callable[[list[ast.stmt]], str] | None = None,
    skip: str = "",
) -> str:
    """The fields of a node that are not empty, by name."""
    written = []
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT or name == skip or value is None or value == []:
            continue
        if isinstance(value, ast.AST):
            text = write(value)
        elif not isinstance(value, list):
            text = ascii(value)
        elif write_block and isinstance(value[0], ast.stmt):
            text = write_block(value)
        else:
            text = "[" + ",".join(write(v) if isinstance(v, ast.AST) else ascii(v) for v in value) + "]"
        written.append(f"{name}={text}")
    return ";".join(written)


def argument_groups(arguments: ast.arguments) -> list[tuple[str, list[ast.arg]]]:
    return [
        ("/", arguments.posonlyargs),
        ("", arguments.args),
        ("*", [arguments.vararg] if arguments.vararg else []),
        ("kw", arguments.kwonlyargs),
        ("**", [arguments.kwarg] if arguments.kwarg else []),
    ]


def argument_names(arguments: ast.arguments) -> set[str]:
    return {argument.arg for _, group in argument_groups(arguments) for argument in group}


def type_names(node: ast.AST) -> set[str]:
    """Type parameters (Python 3.12) of a function or class."""
    return {parameter.name for parameter in getattr(node, "type_params", ())}


def constant_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to write more than 4,300 decimal digits.
        return f"{value:#x}"
    return f"{type(value).__name__}:{value!a}"
