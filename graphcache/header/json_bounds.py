"""JSON written by others, parsed in bounded time and memory and with a named error for each thing that can be wrong.

`json.loads` alone would let a short text of brackets grow to thirty times its size in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from graphcache.header.errors import (
    HeaderDuplicateError,
    HeaderError,
    HeaderJsonError,
    HeaderNestingError,
    HeaderTextError,
    quoted,
)
from graphcache.strict_json import DuplicateKeyError, strict_loads

# A tensor's entry takes at least 45 bytes and holds three brackets, so text with more than one in eight is no header;
# an empty list costs 64 bytes of memory for two of text.
BYTES_PER_BRACKET = 8
FREE_BRACKETS = 64


@dataclass(frozen=True)
class Faults:
    """The errors to raise: a header's own by default, one for all kinds for an index or a config."""

    text: type[HeaderError] = HeaderTextError
    json: type[HeaderError] = HeaderJsonError
    nesting: type[HeaderError] = HeaderNestingError
    duplicate: type[HeaderError] = HeaderDuplicateError

    @classmethod
    def all(cls, error: type[HeaderError]) -> Faults:
        return cls(error, error, error, error)


def parse(text: bytes, file: str | PathLike[str], faults: Faults, *, constants: bool = False) -> Any:
    """The value that `text` holds. `constants`: take NaN and Infinity, which some config.json files contain.

    Raises the kinds of `faults`, naming `file`.
    """
    brackets = text.count(b"[") + text.count(b"{")
    if brackets > FREE_BRACKETS + len(text) // BYTES_PER_BRACKET:
        raise faults.nesting(file, f"{brackets:,} lists and objects in {len(text):,} bytes of JSON")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise faults.text(file, f"not UTF-8: byte 0x{text[error.start]:02x} at {error.start}") from None
    try:
        return strict_loads(decoded, constants=constants)
    except DuplicateKeyError as error:
        raise faults.duplicate(file, f"the key {quoted(error.key)} occurs twice in one object") from None
    except RecursionError:
        raise faults.nesting(file, "JSON nested too deep") from None
    except ValueError as error:
        # Besides JSONDecodeError: integers of more than 4,300 digits.
        raise faults.json(file, f"not JSON: {str(error)[:200]}") from None
