"""The text of a manifest: JSON in a fixed order, laid out so that a diff of two shows one fact a line; its errors."""

from __future__ import annotations

import json
import os
from typing import Any

from graphcache.errors import GraphcacheError
from graphcache.strict_json import DuplicateKeyError, strict_loads

# Items of these lists are one line each, however long: a group of tensors, an argument, a use.
LINES = frozenset({"args", "groups", "uses"})
INDENT = "  "
ANEW = "build --shapes-from CHECKPOINT --manifest FILE writes it anew"


class ManifestError(GraphcacheError):
    """A manifest that cannot be used."""

    name = "manifest"

    def __init__(self, file: str | os.PathLike[str], fact: str, *, hint: str) -> None:
        super().__init__(f"{os.fspath(file)}: {fact}", hint=hint)


class ManifestMissingError(ManifestError):
    """There is no such file, or it cannot be read."""

    name = "manifest-not-found"


class ManifestTargetError(ManifestError):
    """A place where no manifest can be written, or where one would replace another file."""

    name = "manifest-target"


class ManifestJsonError(ManifestError):
    """Not JSON, most often because of a merge."""

    name = "manifest-json"


class ManifestFormatError(ManifestError):
    """JSON, but no manifest, or one of another format."""

    name = "manifest-format"


class ManifestFieldError(ManifestError):
    """A field that is missing, unknown, of another type, or at odds with another one."""

    name = "manifest-field"


def render(value: dict[str, Any]) -> str:
    """`value` as text, fields in the order in which they are given."""
    return _render(value, "", 0) + "\n"


def _render(value: Any, name: str, depth: int) -> str:
    inner = INDENT * (depth + 1)
    if isinstance(value, dict) and value:
        fields = [f"{inner}{json.dumps(key)}: {_render(item, key, depth + 1)}" for key, item in value.items()]
        return _lines("{", fields, "}", depth)
    if isinstance(value, list) and value and name in LINES:
        return _lines("[", [inner + json.dumps(item) for item in value], "]", depth)
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return _lines("[", [inner + _render(item, "", depth + 1) for item in value], "]", depth)
    return json.dumps(value, allow_nan=False)


def _lines(opening: str, items: list[str], closing: str, depth: int) -> str:
    return "\n".join([opening, ",\n".join(items), INDENT * depth + closing])


def parse(data: bytes, fmt: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object of format `fmt` in `data`; `path` names it in errors.

    Raises ManifestJsonError, ManifestFormatError.
    """
    try:
        value = strict_loads(data)
    except (ValueError, RecursionError) as error:
        merged = isinstance(error, DuplicateKeyError) or b"\n<<<<<<<" in data
        hint = f"a merge left it so: take one side, or {ANEW}" if merged else f"restore it from git; {ANEW}"
        raise ManifestJsonError(path, f"not JSON: {error}", hint=hint) from error
    if not isinstance(value, dict) or value.get("format") != fmt:
        found = value.get("format", "none") if isinstance(value, dict) else "none"
        raise ManifestFormatError(path, f"its format is {found!r}, this program reads {fmt!r}", hint=ANEW)
    return value
