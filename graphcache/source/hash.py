"""The source hash of a graph: its function and everything first-party that it reaches, without importing any of it.

docs/keys.md has the rules: what is first-party, followed, refused, not seen. Where a syntax tree cannot tell, the hash
covers more, never less.

Moving a file changes no digest, nor does renaming an import: definitions enter by the order in which they are reached.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graphcache.digest import json_sha256, sha256_hex
from graphcache.source.canonical import WHOLE, Meaning, Reference, Text, plain, spell
from graphcache.source.module import BUILTINS, DYNAMIC, MODULE_NAMES, Alias, Module
from graphcache.source.tree import SourceError, SourceMissingError, SourceTree, WorkTree

__all__ = ["SourceError", "SourceHash", "SourceHashes", "SourceMissingError", "changed_parts", "digest_now"]

OWN_PACKAGE = __name__.partition(".")[0]
# The name of the part that is what runs when a module is imported.
ON_IMPORT = "<module>"
# A part's digest only says which part changed; the whole digest is the identity.
PART_DIGITS = 16


@dataclass(frozen=True)
class SourceHash:
    """What a graph's source is.

    digest: SHA-256 over the definitions in the order in which they are reached; no path enters it
    parts:  `trainer/graphs/adamw.py::adamw` -> digest of this definition alone, sorted
    """

    digest: str
    parts: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        return {"digest": self.digest, "parts": dict(self.parts)}


def digest_now(function: str) -> str:
    """The digest of `package.module:name` as this process would import it. Raises SourceError.

    Ask again after an export: a digest that differs means that the file was edited before it was imported.
    """
    return SourceHashes(WorkTree()).of(function).digest


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The parts that make two source hashes differ, sorted: changed ones, else added and removed ones.

    A definition that only moved to another file is not among them, and a helper that came or went is named only when
    nothing that stayed has changed.
    """
    gone = {name for name in old if name not in new}
    come = {name for name in new if name not in old}
    changed = {name for name in new if name in old and old[name] != new[name]}
    for name in sorted(come):
        # Under the same name in another file: moved, and changed too or not.
        before = [other for other in sorted(gone) if _definition(other) == _definition(name)]
        if before:
            gone.discard(before[0])
            come.discard(name)
            if old[before[0]] != new[name]:
                changed.add(name)
    return sorted(changed) or [*sorted(come), *(f"{name} (removed)" for name in sorted(gone))]


def _definition(part: str) -> str:
    return part.rpartition("::")[2]


class SourceHashes:
    """Source hashes of functions of one tree; what several functions reach is read once."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._hashes: dict[str, SourceHash] = {}
        self._packages: dict[str, _Package] = {}

    def of(self, function: str) -> SourceHash:
        """The hash of `package.module:name`. Raises SourceError when it is not there or cannot be told."""
        if function not in self._hashes:
            module, _, name = function.partition(":")
            top_level = module.partition(".")[0]
            if top_level not in self._packages:
                self._packages[top_level] = _Package(self._tree, top_level)
            self._hashes[function] = self._packages[top_level].hash(module, name)
        return self._hashes[function]


class _Package:
    """The modules that functions of one top-level package can reach, parsed; it resolves names in them."""

    def __init__(self, tree: SourceTree, top_level: str) -> None:
        self._tree, self._top_level = tree, top_level
        self._modules: dict[str, Module | None] = {}
        self._texts: dict[tuple[str, str], Text] = {}
        self._first_party: dict[str, bool] = {}

    def hash(self, module: str, name: str) -> SourceHash:
        found = self._module(module)
        if found is None or name not in found.bindings:
            raise SourceMissingError(f"there is no source of {module}:{name}", hint="check the graph's function")
        reached = self._closure(module, name)
        order = {place: i for i, place in enumerate(reached)}
        values = {r.module + ":" + r.name for place in reached for r in self._text(*place).references if not r.called}
        content, parts = [], {}
        for place in reached:
            text = self._text(*place)
            written = text.text
            if ":".join(place) in values:
                written += ";".join(plain(note) for note in text.notes)
            content.append([written, [order[r.module, r.name] for r in text.references]])
            parts[self._shown(*place)] = sha256_hex(written.encode())[:PART_DIGITS]
        return SourceHash(json_sha256(content), dict(sorted(parts.items())))

    # --- what is reached ------------------------------------------------------------------------------------------

    def _closure(self, module: str, name: str) -> list[tuple[str, str]]:
        """Definitions in the order in which they are reached, then what runs on the import of their modules."""
        reached: dict[tuple[str, str], None] = {}
        modules: dict[str, None] = {}
        waiting: list[tuple[str, str]] = [(module, name)]
        to_import = [module]
        while waiting or to_import:
            if not waiting:
                waiting.extend(self._import(to_import.pop(0), modules, to_import))
                continue
            place = waiting.pop(0)
            if place in reached:
                continue
            reached[place] = None
            text = self._text(*place)
            waiting.extend((r.module, r.name) for r in text.references)
            to_import.extend([place[0], *text.imports])
        return list(reached)

    def _import(self, name: str, modules: dict[str, None], to_import: list[str]) -> Iterator[tuple[str, str]]:
        """Adds a module, its parents and, to `to_import`, what it imports; yields its effects."""
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            module_name = ".".join(parts[:i])
            module = self._module(module_name)
            if module is None or module_name in modules:
                continue
            modules[module_name] = None
            to_import.extend(module.imports)
            if module.effects:
                yield module_name, ON_IMPORT

    def _text(self, module_name: str, name: str) -> Text:
        place = module_name, name
        if place not in self._texts:
            module = self._module(module_name)
            assert module is not None
            if name == WHOLE:
                self._texts[place] = self._whole(module)
            else:
                self._texts[place] = self._spell(module, module.effects if name == ON_IMPORT else module.bindings[name])
        return self._texts[place]

    def _spell(self, module: Module, statements: list[ast.stmt]) -> Text:
        try:
            return spell(module, statements, self)
        except RecursionError as error:
            raise SourceError(f"{module.file.path} is nested too deep to be read", hint="break it up") from error

    def _whole(self, module: Module) -> Text:
        """A module; of a package all that lies in it, since any of it can be reached through its attributes."""
        text = self._spell(module, module.body)
        if not module.file.is_package:
            return text
        inside = (f"{module.file.module}.{name}" for name in self._tree.submodules(module.file.module))
        return replace(text, references=(*text.references, *(Reference(name, WHOLE) for name in inside)))

    def _module(self, name: str) -> Module | None:
        """A first-party module, or None."""
        if name not in self._modules:
            # The public face of this package (`@graphcache.compiled`) is only a name: nothing in it is a graph's code.
            ours = name != OWN_PACKAGE and self._is_first_party(name)
            file = self._tree.file(name) if ours else None
            self._modules[name] = None if file is None else Module.parse(file)
        return self._modules[name]

    def _is_first_party(self, module: str) -> bool:
        top_level = module.partition(".")[0]
        if top_level in (self._top_level, OWN_PACKAGE):
            return True
        if top_level not in self._first_party:
            self._first_party[top_level] = self._tree.is_local(top_level)
        return self._first_party[top_level]

    def _shown(self, module: str, name: str) -> str:
        found = self._module(module)
        assert found is not None
        return f"{found.file.path}::{name}"

    # --- what names mean ------------------------------------------------------------------------------------------

    def name(self, module: Module, names: list[str], called: bool) -> Meaning:
        return self._resolve(module, names, called, frozenset())

    def alias(self, alias: Alias, rest: list[str], called: bool) -> Meaning:
        return self._alias(alias, rest, called, frozenset())

    def _resolve(self, module: Module, names: list[str], called: bool, seen: frozenset[tuple[str, str]]) -> Meaning:
        """What `names[0]`, and as many attributes of it as lead through modules, mean at the top level of `module`."""
        first, rest = names[0], names[1:]
        if any(self._module(star) is not None for star in module.stars):
            # Any name may be the other module's, also one that is bound here before: that one too is all reached.
            return Meaning(f"<*.{first}>", (Reference(module.file.module, WHOLE),), 1)
        place = module.file.module, first
        alias = module.alias(first)
        submodule = f"{module.file.module}.{first}"
        if alias is not None and place not in seen:
            meaning = self._alias(alias, rest, called, seen | {place})
        elif first in module.bindings and alias is None:
            return Meaning(f"@{first}", (Reference(*place, called and not rest),), 1)
        elif module.file.is_package and self._module(submodule) is not None:
            meaning = self._alias(Alias(submodule, None), rest, called, seen)
        else:
            return self._unbound(module, names)
        return Meaning(meaning.text, meaning.references, meaning.used + 1)

    def _alias(self, alias: Alias, rest: list[str], called: bool, seen: frozenset[tuple[str, str]]) -> Meaning:
        names = rest if alias.attribute is None else [alias.attribute, *rest]
        module = self._module(alias.module)
        if module is None:
            return Meaning(f"<{'.'.join([alias.module, *names])}>", (), len(rest))
        if not names:
            return Meaning("@module", (Reference(alias.module, WHOLE),), 0)
        meaning = self._resolve(module, names, called, seen)
        return Meaning(meaning.text, meaning.references, meaning.used - (len(names) - len(rest)))

    def _unbound(self, module: Module, names: list[str]) -> Meaning:
        """A name that no statement of the module binds: a builtin, an installed module's by a star, or who knows."""
        first = names[0]
        whole = (Reference(module.file.module, WHOLE),)
        if first in BUILTINS or first in MODULE_NAMES:
            return Meaning(first, whole if first in DYNAMIC else (), 1)
        return Meaning(f"<*.{first}>", () if module.stars else whole, 1)
