"""Which names the statements of one scope bind, and in which scope."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple


class Bound(NamedTuple):
    """The names that a block binds in its own scope, those that functions in it bind by `global`, and those that it
    declares global itself."""

    own: set[str]
    through_global: set[str]
    declared_global: set[str]


def bound_names(body: Iterable[ast.stmt]) -> Bound:
    """What the statements of one scope bind."""
    found, nonlocals = Bound(set(), set(), set()), set[str]()
    for statement in body:
        _bind(statement, found, nonlocals)
    return found._replace(own=found.own - found.declared_global - nonlocals)


def _bind(node: ast.AST, found: Bound, nonlocals: set[str], inside: bool = True) -> None:
    """Adds what `node` binds; `inside` is False in a comprehension, where only `:=` binds outside."""
    children = list(ast.iter_child_nodes(node))
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if inside:
            found.own.add(name)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            found.own.add(name)
            children = [value]
        case ast.Import() | ast.ImportFrom():
            found.own.update((a.asname or a.name.partition(".")[0]) for a in node.names if a.name != "*")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            found.own.add(name)
            found.through_global.update(n for g in ast.walk(node) if isinstance(g, ast.Global) for n in g.names)
            children = [*node.decorator_list]
            children += [*node.bases, *node.keywords] if isinstance(node, ast.ClassDef) else [node.args]
        case ast.Lambda(args=args):
            children = [args]
        case ast.arguments(defaults=defaults, kw_defaults=kw_defaults):
            children = [*defaults, *(default for default in kw_defaults if default)]
        case ast.Global(names=names):
            found.declared_global.update(names)
        case ast.Nonlocal(names=names):
            nonlocals.update(names)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            found.own.add(name)
        case ast.MatchMapping(rest=str(name)):
            found.own.add(name)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            inside = False
    for child in children:
        _bind(child, found, nonlocals, inside)
