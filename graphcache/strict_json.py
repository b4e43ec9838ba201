"""JSON as RFC 8259 has it: `json.loads` alone keeps the last of two equal keys, and takes NaN and Infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class DuplicateKeyError(ValueError):
    """A key that occurs twice in one object: readers differ in which of the two counts."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} occurs twice in one object")
        self.key = key


def strict_loads(text: str | bytes, *, constants: bool = False) -> Any:
    """The value that `text` holds; bytes are UTF-8. `constants`: take NaN and Infinity all the same.

    Raises DuplicateKeyError, other kinds of ValueError, RecursionError.
    """
    decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    return json.loads(decoded, object_pairs_hook=_unique, parse_constant=float if constants else _refuse_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(key)
            seen.add(key)
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
