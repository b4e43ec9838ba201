"""Canonical JSON and the two digests: SHA-256 for identity, XXH3-128 for bit rot.

A shared cache may be written by others, so whatever names content is SHA-256. Where speed counts and nobody attacks
(the checksum that every load recomputes, memo keys) it is XXH3-128.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import xxhash


def canonical_json(value: Any) -> bytes:
    """`value` as JSON that depends on nothing but `value`: sorted keys, no spaces, ASCII, no NaN.

    Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sha256_hex(data: bytes | memoryview) -> str:
    """Identity of bytes: 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def json_sha256(value: Any) -> str:
    """Identity of a JSON value: SHA-256 of its canonical form."""
    return sha256_hex(canonical_json(value))


def checksum(data: bytes | memoryview) -> str:
    """XXH3-128 of bytes, 32 hexadecimal digits: finds bit rot, proves nothing about who wrote them."""
    return xxhash.xxh3_128_hexdigest(data)
