"""Small files that cover themselves: canonical JSON with its own SHA-256 inside, and fields of the right types.

A record must come out the same, byte for byte, when it is encoded again. The types are checked as well: the digest
finds damage, not another program's idea of a field, and nothing that a store holds may end a command.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from graphcache.digest import canonical_json, json_sha256
from graphcache.errors import CorruptError

_TIME = re.compile(r"[1-9]\d{3}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)


def seal(fmt: str, body: Mapping[str, Any]) -> bytes:
    """`body` as a line of canonical JSON with `format` and the SHA-256 of all of it."""
    whole = {**body, "format": fmt}
    return canonical_json({**whole, "sha256": json_sha256(whole)}) + b"\n"


def unseal(fmt: str, data: bytes) -> dict[str, Any]:
    """What was sealed, without `format` and `sha256`. Raises CorruptError unless it is sealed byte for byte so."""
    try:
        value = json.loads(data)
        body = {name: value[name] for name in value if name not in ("format", "sha256")}
        if seal(value["format"], body) != data:
            raise ValueError("its SHA-256 does not match")
        if value["format"] != fmt:
            raise ValueError(f"its format is {value['format']!r}, this program reads {fmt!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"a record of {len(data)} bytes: {error}") from error
    return body


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, not a string")
    return value


def texts(name: str, value: object) -> dict[str, str]:
    return {text(f"a name in {name}", key): text(f"{name}.{key}", each) for key, each in mapping(name, value).items()}


def mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}, not an object")
    return value


def count(name: str, value: object) -> int:
    """A whole number from 0 to 2^63, and not a bool."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {value!r}, not a count")
    return value


def secs(name: str, value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}, not a number of seconds")
    return value  # type: ignore[return-value]


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return value


def digits(name: str, value: object, length: int) -> str:
    """A digest: it may become a file name, so it is nothing but lower-case hexadecimal digits."""
    if not re.fullmatch(f"[0-9a-f]{{{length}}}", text(name, value)):
        raise ValueError(f"{name} is {value!r}, not {length} hexadecimal digits")
    return text(name, value)


def moment(name: str, value: object) -> str:
    """A time in UTC, like 2026-11-29T15:04:05Z."""
    if not _TIME.fullmatch(text(name, value)):
        raise ValueError(f"{name} is {value!r}, not a time like 2026-11-29T15:04:05Z")
    return text(name, value)
