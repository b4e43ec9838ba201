"""The vendor's error text, made readable: a line for the fault, its causes below, nothing that varies by run.

As it comes from 2026.4 it is Rust's `Debug` of a Python exception with its newlines escaped, the whole graph, objects
by address, places in the vendor's source, and names of temporary files. 2026.2 raises `failed to compile the graph`,
and has what was wrong in the exception's cause.
"""

from __future__ import annotations

import ast
import re

_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PY_ERR = re.compile(rf"PyErr \{{ type: .*?, value: \w+\(({_STRING}).*?\), traceback: .*? \}}", re.DOTALL)
_INDENTED = r"(?:\n[ ]{4,}.*)*"
_GRAPH = re.compile(rf"\ngraph\(\):{_INDENTED}")
_SOURCE = re.compile(rf"\nsource:({_INDENTED})")
_LOCATION = re.compile(r"\n*Location:\n +\S+:\d+:\d+")
_NODE = re.compile(r'Node \{ .*?name: "(\w+)".* \}')
_CACHE = re.compile(r"\(cache at [^)]*\)")
_TEMPORARY_FOLDER = re.compile(r"[\w./+-]*/\.tmp\w+/")
_TEMPORARY_FILE = re.compile(r"[\w./+-]*/\.tmp\w+(\.\w+)?")
_CAUSED = r"Caused by:\s*(?:0: )?"
_FIRST_CAUSE = re.compile(rf":?\s*\n(?:compile error:\s*(?:{_CAUSED})?|{_CAUSED})")
_CAUSE = re.compile(r":?\s*(?:\ncompile error:\s*|\nCaused by:\s*(?:0: )?)+")
_LATER_CAUSE = re.compile(rf"\s*\n{_CAUSED}|\n *\d+: ")


def whole(error: BaseException) -> str:
    """The message of an error and of what caused it."""
    text = str(error)
    return text if error.__cause__ is None else f"{text}\n\nCaused by:\n{whole(error.__cause__)}"


def readable(text: str) -> str:
    """`what failed: the first cause`, then a line for each further one."""
    text = _PY_ERR.sub(lambda found: str(ast.literal_eval(found[1])), text)
    for noise in (_GRAPH, _SOURCE, _LOCATION, _CACHE):
        text = noise.sub("", text)
    text = _NODE.sub(r"\1", text)
    text = _TEMPORARY_FOLDER.sub("", text)
    text = _TEMPORARY_FILE.sub(r"a temporary \1 file", text)
    text = _FIRST_CAUSE.sub(": ", re.sub(r"\n\s*\n+", "\n", text), count=1)
    return _LATER_CAUSE.sub("\ncaused by: ", text).strip()


def named_nodes(text: str) -> tuple[str, ...]:
    """Names of the nodes that the text lists with their source: the nodes of the part that failed."""
    listed = _SOURCE.search(text)
    return tuple(line.split()[0] for line in listed[1].splitlines() if line.strip()) if listed else ()
