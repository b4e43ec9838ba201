"""Generated packages and edits: a hash changes exactly when the edit is to something that the function reaches.

What is reached is known from how the package was generated, not from the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_tree import hash_of

MODULES = 3
# How a definition may refer to one in another module; `{m}` is the module, `{n}` the name, `{a}` a name of its own.
IMPORTS = {
    "from": ("from pkg.{m} import {n}", "{n}"),
    "from as": ("from .{m} import {n} as {a}", "{a}"),
    "module": ("from pkg import {m}", "{m}.{n}"),
    "module as": ("import pkg.{m} as {a}", "{a}.{n}"),
    "dotted": ("import pkg.{m}", "pkg.{m}.{n}"),
    "re-export": ("from pkg import {n}", "{n}"),
}
# How a function uses what it reaches.
USES = (
    "x = x + {r}",
    "x = [y for y in {r}]",
    "x = (lambda: {r})()",
    "if x:\n        x = {r}",
    "def inner(y={r}):\n        return y",
    "for y in x:\n        y({r})",
)


@dataclass(frozen=True)
class Definition:
    """A function or a constant; `refers` are (index of an earlier definition, kind of import, kind of use)."""

    module: int
    function: bool
    refers: tuple[tuple[int, str, str], ...]


@st.composite
def packages(draw: st.DrawFn) -> list[Definition]:
    """Definitions in an order in which each refers to earlier ones only; the last is the graph's function."""
    count = draw(st.integers(2, 7))
    found = []
    for i in range(count):
        earlier = st.tuples(st.integers(0, i - 1), st.sampled_from(sorted(IMPORTS)), st.sampled_from(USES))
        refers = draw(st.lists(earlier, max_size=2)) if i else []
        function = i == count - 1 or draw(st.booleans())
        found.append(Definition(draw(st.integers(0, MODULES - 1)), function, tuple(refers)))
    return found


def reached(definitions: list[Definition]) -> set[int]:
    found, waiting = set(), [len(definitions) - 1]
    while waiting:
        i = waiting.pop()
        if i not in found:
            found.add(i)
            waiting += [to for to, _, _ in definitions[i].refers]
    return found


def written(definitions: list[Definition], constants: list[int], gaps: list[str]) -> dict[str, str]:
    """The package's files. `constants` has a number for each definition, `gaps` goes between lines."""
    heads: dict[int, list[str]] = {i: [] for i in range(MODULES)}
    bodies: dict[int, list[str]] = {i: [] for i in range(MODULES)}
    for i, definition in enumerate(definitions):
        lines = [f"def d{i}(x):"] if definition.function else []
        names = []
        for j, (to, kind, use) in enumerate(definition.refers):
            target = definitions[to]
            if target.module == definition.module:
                name = f"d{to}"
            else:
                statement, name = (
                    text.format(m=f"m{target.module}", n=f"d{to}", a=f"alias{i}_{j}") for text in IMPORTS[kind]
                )
                heads[definition.module].append(statement)
            names.append(name)
            if definition.function:
                lines.append("    " + use.format(r=name))
        tail = ", ".join([*names, str(constants[i])])
        lines.append(f"    return ({tail},)" if definition.function else f"d{i} = ({tail},)")
        bodies[definition.module] += [*lines, ""]
    exports = "\n".join(f"from pkg.m{definition.module} import d{i}" for i, definition in enumerate(definitions))
    files = {"pkg/__init__.py": exports}
    for i in range(MODULES):
        lines = [*heads[i], *bodies[i]]
        files[f"pkg/m{i}.py"] = "\n".join(_laid_out(line, gaps[n % len(gaps)]) for n, line in enumerate(lines))
    return files


def _laid_out(line: str, gap: str) -> str:
    """A line with `gap` after it, indented in a function; none inside a block that a line opens."""
    if not line.startswith("  "):
        indent = "    " if line.startswith("def") else ""
        return "\n".join([line, *(indent + each for each in gap.splitlines())])
    return line if line.endswith(":") or line.startswith("     ") else f"{line}  # {gap.strip()[:1]}"


def function_of(definitions: list[Definition]) -> str:
    return f"pkg.m{definitions[-1].module}:d{len(definitions) - 1}"


PLAIN = [""]


@given(packages(), st.data())
def test_a_constant_matters_exactly_when_its_definition_is_reached(definitions, data):
    edited = data.draw(st.integers(0, len(definitions) - 1))
    before = list(range(len(definitions)))
    after = [*before[:edited], 99, *before[edited + 1 :]]
    old, new = (
        hash_of(written(definitions, constants, PLAIN), function_of(definitions)) for constants in (before, after)
    )
    assert (old.digest != new.digest) == (edited in reached(definitions))
    place = f"pkg/m{definitions[edited].module}.py::d{edited}"
    assert {name for name in new.parts if old.parts.get(name) != new.parts[name]} <= {place}


@given(packages())
def test_parts_are_exactly_what_is_reached(definitions):
    found = hash_of(written(definitions, list(range(len(definitions))), PLAIN), function_of(definitions))
    every = {f"pkg/m{definition.module}.py::d{i}" for i, definition in enumerate(definitions)}
    # A name that two different imports bind is a part of its own in the importing module.
    assert every & set(found.parts) == {f"pkg/m{definitions[i].module}.py::d{i}" for i in reached(definitions)}


GAPS = st.lists(
    st.sampled_from(["", "\n\n", "# a comment", "\n# a comment\n", "'A string.'\n", "pass", "   "]), min_size=1
)


@given(packages(), GAPS)
def test_layout_never_matters(definitions, gaps):
    constants = list(range(len(definitions)))
    plain, laid_out = (written(definitions, constants, g) for g in (PLAIN, gaps))
    assert hash_of(plain, function_of(definitions)) == hash_of(laid_out, function_of(definitions))
