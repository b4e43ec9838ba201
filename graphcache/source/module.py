"""A module's top level, read from its syntax tree: what binds each name, what it imports, what runs on import."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphcache.source.binding import bound_names
from graphcache.source.tree import SourceError, SourceFile

BUILTINS = frozenset(dir(builtins))
# Set by the import system in every module.
MODULE_NAMES = frozenset({"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__"})
# Builtins that can reach or change any name of a module, so that a syntax tree does not tell what they do.
DYNAMIC = frozenset(
    {"__builtins__", "__import__", "compile", "delattr", "eval", "exec", "globals", "locals", "setattr", "vars"}
)
# Builtins that only read what they are given, unless that is a `key`; any other may call it or change it.
READING = frozenset(
    {"abs", "all", "any", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "getattr", "hasattr", "int"}
    | {"isinstance", "issubclass", "len", "list", "max", "min", "range", "repr", "reversed", "round", "set", "slice"}
    | {"sorted", "str", "sum", "tuple", "zip"}
)
# Modules of the standard library that run other modules.
IMPORT_SYSTEM = frozenset({"imp", "importlib", "pkgutil", "runpy", "zipimport"})
# Parts of the import system that run no module which stays hidden from the hash. The value: whether a call may still
# change something.
OPEN = {
    "importlib.invalidate_caches": False,
    # Imports the parents of a name with a dot.
    "importlib.util.find_spec": False,
    "importlib.metadata": False,
    "importlib.reload": True,
    # Imports the package that it is given.
    "importlib.resources": True,
    "pkgutil.extend_path": True,
}

Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = (ast.If, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While, ast.Match)

# The decorator `graphcache.marks.marked.compiled` by its public name.
MARK = "graphcache.compiled"


@dataclass(frozen=True)
class Alias:
    """What one imported name stands for: the module `module`, or `attribute` of it."""

    module: str
    attribute: str | None


@dataclass
class Module:
    """The top level of one module, in the order of its text.

    bindings: name -> the top-level statements that bind it; a name that is bound in an `if` or a `try` has the whole
              statement, and so has a name that a function binds by `global`
    stars:    modules of `from module import *`
    imports:  every module that is imported when this one is
    effects:  statements that may do more than bind names
    """

    file: SourceFile
    body: list[ast.stmt]
    bindings: dict[str, list[ast.stmt]] = field(default_factory=lambda: defaultdict(list))
    stars: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    effects: list[ast.stmt] = field(default_factory=list)

    @classmethod
    def parse(cls, file: SourceFile) -> Module:
        """Raises SourceError for text that is not Python."""
        try:
            tree = ast.parse(file.text, file.path)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            where = f"{file.path}:{line}" if line else file.path
            raise SourceError(f"{where} is not Python: {error}", hint="correct it first") from error
        module = cls(file, live(tree.body))
        for statement in module.body:
            module._add(statement)
        for statement in module.body:
            if isinstance(statement, ast.FunctionDef):
                statement.decorator_list = [d for d in statement.decorator_list if not module._is_mark(d)]
        module.effects = [statement for statement in module.body if module._has_effect(statement)]
        return module

    def _is_mark(self, decorator: ast.expr) -> bool:
        """Whether a decorator only marks a function as a graph: what is compiled is the function without it."""
        return isinstance(decorator, ast.Call) and self._dotted(decorator.func) == MARK

    def alias(self, name: str) -> Alias | None:
        """What an import binds `name` to; None when anything else binds it too, or another import otherwise."""
        found = {self.aliases(s).get(name) if isinstance(s, Import) else None for s in self.bindings.get(name, ())}
        return found.pop() if len(found) == 1 else None

    def aliases(self, statement: Import) -> dict[str, Alias]:
        """The names that an import statement binds; a star binds none."""
        if isinstance(statement, ast.Import):
            return {
                a.asname or a.name.partition(".")[0]: Alias(a.name if a.asname else a.name.partition(".")[0], None)
                for a in statement.names
            }
        module = self.absolute(statement)
        return {a.asname or a.name: Alias(module, a.name) for a in statement.names if a.name != "*"}

    def imported(self, statement: Import) -> Iterator[str]:
        """The modules that an import statement may import."""
        if isinstance(statement, ast.Import):
            yield from (a.name for a in statement.names)
            return
        module = self.absolute(statement)
        yield module
        yield from (f"{module}.{a.name}" for a in statement.names if a.name != "*")

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The module that `from ... import` names, relative names resolved."""
        if not statement.level:
            return statement.module or ""
        package = self.file.module.split(".")
        drop = statement.level - self.file.is_package
        if drop >= len(package):
            raise SourceError(
                f"{self.file.path}:{statement.lineno} imports from beyond its top-level package", hint="correct it"
            )
        kept = package[: len(package) - drop]
        return ".".join([*kept, statement.module] if statement.module else kept)

    def _add(self, statement: ast.stmt) -> None:
        bound = bound_names([statement])
        for name in sorted(bound.own | bound.through_global):
            self.bindings[name].append(statement)
        for inner in executed(statement):
            if isinstance(inner, Import):
                self.imports.extend(self.imported(inner))
                if isinstance(inner, ast.ImportFrom) and inner.names[0].name == "*":
                    self.stars.append(self.absolute(inner))

    def _has_effect(self, statement: ast.stmt) -> bool:
        """Whether running a top-level statement may do more than bind names: fails closed."""
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Global():
                return False
            case ast.Expr() | ast.Delete() | ast.Raise():
                return True
            case ast.Assign(targets=targets) if not all(_only_names(target) for target in targets):
                return True
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) if not _only_names(target):
                return True
        if isinstance(statement, _COMPOUND) and any(
            self._has_effect(inner) for block in _blocks(statement) for inner in live(block)
        ):
            return True
        return any(self._may_change_something(call) for call in _calls_on_run(statement))

    def _may_change_something(self, call: ast.Call) -> bool:
        """The standard library is taken to change no program unless it is given something of others, or imports."""
        function, plain = call.func, isinstance(call.func, ast.Name)
        while isinstance(function, ast.Attribute | ast.Subscript):
            function = function.value
        if isinstance(function, ast.Constant | ast.JoinedStr):
            return False
        given = any(self._is_others(node) for part in (function, *call.args, *call.keywords) for node in ast.walk(part))
        if not isinstance(function, ast.Name):
            # Of a literal, or of another call's result; that call is looked at by itself.
            return given
        if function.id not in self.bindings:
            harmless = function.id in BUILTINS and function.id not in DYNAMIC
            # Not `dict.update(TABLE, ...)`, and not what a key function may do.
            reads = plain and function.id in READING and all(k.arg not in (None, "key") for k in call.keywords)
            return not harmless or (given and not reads)
        if self._is_of_import_system(function):
            return not self._only_asks(call)
        return given

    def _only_asks(self, call: ast.Call) -> bool:
        """Whether a call into the import system runs no module and changes nothing."""
        dotted = self._dotted(call.func)
        # Not a method of what lies in them, such as `EntryPoint.load`.
        known = known_of_import_system(dotted) if dotted.count(".") <= 2 else None
        if known == "importlib.util.find_spec":
            match call:
                case ast.Call(args=[ast.Constant(value=str(name))], keywords=[]):
                    return "." not in name
            return False
        return known is not None and not OPEN[known]

    def _dotted(self, node: ast.expr) -> str:
        """The dotted name that an imported name and its attributes stand for; empty for anything else."""
        match node:
            case ast.Name(id=name):
                alias = self.alias(name)
                return "" if alias is None else ".".join(filter(None, (alias.module, alias.attribute)))
            case ast.Attribute(value=value, attr=attribute) if dotted := self._dotted(value):
                return f"{dotted}.{attribute}"
        return ""

    def _is_others(self, node: ast.AST) -> bool:
        """Whether a name of the module stands for something that is not the standard library's, or that may run what
        is not: of the import system, whose answers lead to loaders."""
        if not isinstance(node, ast.Name) or node.id not in self.bindings:
            return False
        alias = self.alias(node.id)
        if alias is None or alias.module.partition(".")[0] not in sys.stdlib_module_names:
            return True
        return self._is_of_import_system(node)

    def _is_of_import_system(self, node: ast.Name) -> bool:
        alias = self.alias(node.id)
        return alias is not None and alias.module.partition(".")[0] in IMPORT_SYSTEM


def known_of_import_system(name: str) -> str | None:
    """The part of OPEN that the dotted `name` is, or lies in when that is a module; None for none."""
    package = ".".join(name.split(".")[:2])
    inside = package in ("importlib.metadata", "importlib.resources")
    found = package if inside else name
    return found if found in OPEN else None


def live(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements that can matter: no docstring or other bare constant, no `pass`, no block that never runs here."""
    kept: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.If(test=test, orelse=orelse) if _never_true(test):
                kept.extend(live(orelse))
            case _:
                kept.append(statement)
    return kept


def _never_true(test: ast.expr) -> bool:
    """`TYPE_CHECKING`, and `__name__ == "__main__"` in a module that is imported."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
    return False


def executed(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those nested in it that run with it; functions' bodies do not."""
    yield statement
    if isinstance(statement, (*_COMPOUND, ast.ClassDef)):
        for block in _blocks(statement):
            for inner in live(block):
                yield from executed(inner)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _only_names(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_only_names(element) for element in target.elts)
    return _only_names(target.value) if isinstance(target, ast.Starred) else isinstance(target, ast.Name)


def _calls_on_run(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that running a statement makes, decorators' among them; functions' bodies do not run."""
    match node:
        case (
            ast.FunctionDef(args=args, decorator_list=decorators)
            | ast.AsyncFunctionDef(args=args, decorator_list=decorators)
        ):
            yield from (ast.Call(func=d, args=[], keywords=[]) for d in decorators if not isinstance(d, ast.Call))
            parts: list[ast.AST] = [*decorators, *args.defaults, *(d for d in args.kw_defaults if d)]
        case ast.Lambda(args=args):
            parts = [*args.defaults, *(d for d in args.kw_defaults if d)]
        case ast.ClassDef(decorator_list=decorators):
            yield from (ast.Call(func=d, args=[], keywords=[]) for d in decorators if not isinstance(d, ast.Call))
            parts = list(ast.iter_child_nodes(node))
        case ast.AnnAssign(value=value):
            parts = [value] if value else []
        case _:
            parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        yield node
    for part in parts:
        yield from _calls_on_run(part)
