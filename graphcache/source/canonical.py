"""The canonical text of a definition: its syntax tree without what cannot matter, names resolved to what they mean.

Left out: layout, comments, docstrings, how a name was imported, annotations. An annotation is kept in class bodies
(dataclasses read it) and on decorated functions (torch.library reads a custom op's), and by whoever asks for `notes`
because the function is passed as a value. Annotations are never followed.

The text is written here rather than by `ast.dump`, whose output differs between Python versions. Empty fields are left
out, so a field that a newer Python adds changes nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from graphcache.source.binding import bound_names
from graphcache.source.module import (
    DYNAMIC,
    IMPORT_SYSTEM,
    Alias,
    Function,
    Import,
    Module,
    known_of_import_system,
    live,
)
from graphcache.source.nodes import argument_groups, argument_names, constant_text, fields_text, type_names
from graphcache.source.tree import SourceError

# The name of a part that is a whole module.
WHOLE = "*"
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
# Ways to get a module whose name may be computed; a constant one is followed.
_IMPORTERS = {"__import__", "<builtins.__import__>", "<importlib.__import__>", "<importlib.import_module>"}
# How a loader runs a module, whatever led to the loader.
_LOADING = {"exec_module", "load_module"}


@dataclass(frozen=True)
class Reference:
    """A definition that another one reaches; `called` when it is only called there, not passed on as a value."""

    module: str
    name: str
    called: bool = False


@dataclass(frozen=True)
class Meaning:
    """What a dotted name means: its text, the definitions behind it, and how many of its parts that took."""

    text: str
    references: tuple[Reference, ...]
    used: int


@dataclass(frozen=True)
class Text:
    """A definition's canonical text.

    notes:      the annotations of its undecorated functions, which rarely matter; `plain` gives their text
    references: the first-party definitions that it reaches, in order of occurrence
    imports:    modules that its functions import when they run
    """

    text: str
    notes: tuple[ast.expr | None, ...]
    references: tuple[Reference, ...]
    imports: tuple[str, ...]


class Resolver(Protocol):
    """Says what names mean; `called` is passed on to the references."""

    def name(self, module: Module, names: list[str], called: bool) -> Meaning:
        """What a dotted name means at the top level of `module`."""

    def alias(self, alias: Alias, rest: list[str], called: bool) -> Meaning:
        """What the attributes `rest` of an imported name mean."""


def spell(module: Module, statements: Iterable[ast.stmt], resolver: Resolver) -> Text:
    """The canonical text of top-level statements of `module`."""
    writer = _Writer(module, resolver)
    text = writer.block(list(statements))
    return Text(text, tuple(writer.notes), tuple(writer.references), tuple(writer.imports))


def plain(node: ast.AST | None) -> str:
    """The text of a tree whose names are not resolved."""
    if node is None:
        return "-"
    if isinstance(node, ast.Constant):
        return constant_text(node.value)
    return f"{type(node).__name__}({fields_text(node, plain)})"


@dataclass
class _Scope:
    """Names of a function, a comprehension or a class body.

    own:      bound here; of a class, only what the module does not bind too (both could be meant)
    aliases:  what imports here bind, as long as it is among `own`
    globals:  declared global
    is_class: visible in the class body alone, not in its methods
    """

    own: set[str]
    aliases: dict[str, Alias] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    is_class: bool = False


class _Writer:
    def __init__(self, module: Module, resolver: Resolver) -> None:
        self.module, self.resolver = module, resolver
        self.scopes: list[_Scope] = []
        self.notes: list[ast.expr | None] = []
        self.references: list[Reference] = []
        self.imports: list[str] = []

    def block(self, body: list[ast.stmt]) -> str:
        return "[" + ",".join(text for statement in live(body) if (text := self.node(statement))) + "]"

    def node(self, node: ast.AST) -> str:
        match node:
            case ast.Constant(value=value):
                return constant_text(value)
            case ast.Name() | ast.Attribute():
                text = self._name(node, called=False)
                if text in _IMPORTERS:
                    raise self._cannot_tell(node, text)
                return text
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                return self._call(node, function)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._function(node)
            case ast.Lambda():
                return self._lambda(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._comprehension(node)
            case ast.ClassDef():
                return self._class(node)
            case ast.Import() | ast.ImportFrom():
                return self._import(node)
            case ast.AnnAssign():
                return self._annotated(node)
        return f"{type(node).__name__}({self._fields(node)})"

    def _fields(self, node: ast.AST, skip: str = "") -> str:
        return fields_text(node, self.node, self.block, skip)

    def _list(self, nodes: Iterable[ast.AST | None]) -> str:
        return "[" + ",".join("-" if node is None else self.node(node) for node in nodes) + "]"

    # --- names ----------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name | ast.Attribute, *, called: bool) -> str:
        """A name or a dotted name; what is left of the latter after its meaning are attributes."""
        text = self._meaning(node, called)
        if text not in _IMPORTERS and _hides_what_it_reaches(text):
            raise self._cannot_tell(node, text)
        if text == "<builtins>" or (text.startswith("<builtins.") and text[len("<builtins.") : -1] in DYNAMIC):
            self.references.append(Reference(self.module.file.module, WHOLE))
        return text

    def _meaning(self, node: ast.Name | ast.Attribute, called: bool) -> str:
        attributes: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            attributes.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            return ".".join([self.node(base), *attributes])
        if not isinstance(base.ctx, ast.Load):
            return f"'{base.id}"
        scope = self._scope_of(base.id)
        if scope is None:
            meaning = self.resolver.name(self.module, [base.id, *attributes], called)
            left = attributes[meaning.used - 1 :]
        elif base.id in scope.aliases:
            meaning = self.resolver.alias(scope.aliases[base.id], attributes, called)
            left = attributes[meaning.used :]
        else:
            return ".".join([f"'{base.id}", *attributes])
        self.references.extend(meaning.references)
        return ".".join([meaning.text, *left])

    def _call(self, node: ast.Call, function: ast.Name | ast.Attribute) -> str:
        text = self._name(function, called=True)
        if text in _IMPORTERS:
            match node.args:
                case [ast.Constant(value=str(module))] if not module.startswith("."):
                    self.references.extend(self.resolver.alias(Alias(module, None), [], False).references)
                    self.imports.append(module)
                case _:
                    raise self._cannot_tell(node, text)
        return f"Call({text};{self._fields(node, skip='func')})"

    def _cannot_tell(self, node: ast.expr, text: str) -> SourceError:
        computed = text in _IMPORTERS or text.startswith("<sys.modules")
        does = "imports a module by a name that is computed" if computed else f"uses {ast.unparse(node)}"
        return SourceError(
            f"{self.module.file.path}:{node.lineno} {does}, so it cannot be told what the graph reaches",
            hint="import modules by import statements",
        )

    def _scope_of(self, name: str) -> _Scope | None:
        """The scope that binds a name; None when the module does."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if name in scope.globals:
                return None
            if name in scope.own and not (scope.is_class and depth):
                return scope
        return None

    def _import(self, node: Import) -> str:
        """What an import binds. Followed here is a name that is used where no scope knows it: a module's, a class's or
        a global's."""
        aliases = list(self.module.aliases(node).items())
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            aliases = [("*", Alias(self.module.absolute(node), None))]
        meanings = [(name, self.resolver.alias(alias, [], False)) for name, alias in aliases]
        scope = self.scopes[-1] if self.scopes else None
        for name, meaning in meanings:
            if scope is None or scope.is_class or name in scope.globals:
                self.references.extend(meaning.references)
        self.imports.extend(self.module.imported(node))
        return "Import(" + ",".join(f"'{name}={meaning.text}" for name, meaning in meanings) + ")"

    # --- scopes ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _inside(self, scope: _Scope) -> Iterator[None]:
        self.scopes.append(scope)
        yield
        self.scopes.pop()

    def _function(self, node: Function) -> str:
        """Decorators and defaults are written outside the function's scope, its body inside."""
        outside = f"{self._list(node.decorator_list)};{self._arguments(node.args)}"
        notes = [*(a.annotation for _, group in argument_groups(node.args) for a in group), node.returns]
        if node.decorator_list:
            outside += f";{','.join(plain(note) for note in notes)}"
        else:
            self.notes.extend(notes)
        bound = bound_names(node.body)
        own = bound.own | argument_names(node.args) | type_names(node)
        with self._inside(_Scope(own, self._aliases(node.body), bound.declared_global)):
            body = self.block(node.body)
        return f"{type(node).__name__}({node.name!a};{outside};{body})"

    def _lambda(self, node: ast.Lambda) -> str:
        outside = self._arguments(node.args)
        with self._inside(_Scope(argument_names(node.args))):
            return f"Lambda({outside};{self.node(node.body)})"

    def _comprehension(self, node: _Comprehension) -> str:
        """The first iterable is written outside the comprehension's scope."""
        first = self.node(node.generators[0].iter)
        targets = [ast.Assign(targets=[g.target], value=ast.Tuple(elts=[])) for g in node.generators]
        with self._inside(_Scope(bound_names(targets).own)):
            later = ",".join(self.node(generator.iter) for generator in node.generators[1:])
            generators = ",".join(self._fields(generator, skip="iter") for generator in node.generators)
            return f"{type(node).__name__}({first};{later};{generators};{self._fields(node, skip='generators')})"

    def _class(self, node: ast.ClassDef) -> str:
        outside = f"{self._list(node.decorator_list)};{self._list(node.bases)};{self._list(node.keywords)}"
        own = (bound_names(node.body).own | type_names(node)) - self.module.bindings.keys()
        with self._inside(_Scope(own, is_class=True)):
            return f"ClassDef({node.name!a};{outside};{self.block(node.body)})"

    def _aliases(self, body: list[ast.stmt]) -> dict[str, Alias]:
        """What imports in a function bind. Of a name that is bound otherwise too, the import is what is followed."""
        found: dict[str, Alias] = {}
        for statement in body:
            for inner in ast.walk(statement):
                if isinstance(inner, Import):
                    found.update(self.module.aliases(inner))
        return found

    def _arguments(self, arguments: ast.arguments) -> str:
        """Names, kinds and defaults."""
        names = [f"{kind}:{','.join(a.arg for a in group)}" for kind, group in argument_groups(arguments)]
        return f"{';'.join(names)};{self._list(arguments.defaults)};{self._list(arguments.kw_defaults)}"

    def _annotated(self, node: ast.AnnAssign) -> str:
        """`x: T = 1` is `x = 1` and `x: T` is nothing, but in a class body either is a field."""
        value = "" if node.value is None else self.node(node.value)
        target = self.node(node.target)
        if self.scopes and self.scopes[-1].is_class:
            return f"Field({target};{plain(node.annotation)};{value})"
        return f"Assign(targets=[{target}];value={value})" if node.value else ""


def _hides_what_it_reaches(text: str) -> bool:
    """Whether a name's meaning leads to modules past the syntax tree."""
    names = text.strip("<>'").split(".")
    if not _LOADING.isdisjoint(names[1:]):
        return True
    if not text.startswith("<"):
        return False
    if names[:2] == ["sys", "modules"]:
        return True
    return names[0] in IMPORT_SYSTEM and known_of_import_system(".".join(names)) is None
