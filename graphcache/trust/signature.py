"""A signature over one record of a store: an entry, or which program a source exports to.

An entry names its artifact by SHA-256 and holds its whole key, so a signature over the entry's bytes covers both. It is
found by the SHA-256 of the record that it signs, so it cannot be moved to another one: of another key, or of the same
key at another time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from graphcache.digest import canonical_json, sha256_hex
from graphcache.errors import CorruptError
from graphcache.store import records

FORMAT = "graphcache-signature-1"
FOLDER = "signatures"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """record: SHA-256 of the record's bytes; public: the signer's Ed25519 key, both in hexadecimal digits.

    signed and expires are UTC, `2026-11-29T15:04:05Z`; expires is None for never.
    """

    record: str
    public: str
    signed: str
    expires: str | None
    signature: str

    def __post_init__(self) -> None:
        records.digits("record", self.record, 64)
        records.digits("public", self.public, 64)
        records.digits("signature", self.signature, 128)
        records.moment("signed", self.signed)
        if self.expires is not None:
            records.moment("expires", self.expires)

    @property
    def message(self) -> bytes:
        return message(self.record, self.public, self.signed, self.expires)

    def encode(self) -> bytes:
        return records.seal(FORMAT, vars(self))

    @classmethod
    def decode(cls, data: bytes) -> Signature:
        """Raises CorruptError. Says nothing about whether it is right."""
        try:
            return cls(**records.unseal(FORMAT, data))
        except (ValueError, TypeError) as error:
            raise CorruptError(f"a signature of {len(data)} bytes: {error}") from error


def message(record: str, public: str, signed: str, expires: str | None) -> bytes:
    """What is signed: everything that a signature says, under a name that no other use of the key has."""
    return canonical_json({"format": FORMAT, "record": record, "public": public, "signed": signed, "expires": expires})


def signature_path(root: Path, record: bytes) -> Path:
    """Where a store keeps the signature over a record."""
    digest = sha256_hex(record)
    return root / FOLDER / digest[:2] / f"{digest}.json"


def utc(secs: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(secs))
