"""The keys that are trusted: a JSON file that a team commits or mounts, and the check of a signature against it.

{"format": "graphcache-trust-1", "keys": [{"name": "ci", "public": "<64 digits>", "not_after": "2027-..Z" or null}]}
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.digest import sha256_hex
from graphcache.errors import CorruptError
from graphcache.store import records
from graphcache.store.files import write_file
from graphcache.store.reading import read_file
from graphcache.strict_json import strict_loads
from graphcache.trust.errors import TrustError
from graphcache.trust.keys import INSTALL
from graphcache.trust.signature import Signature, utc

FORMAT = "graphcache-trust-1"


@dataclass(frozen=True)
class TrustedKey:
    """A name for people, an Ed25519 key, and when it ends; what it signed ends with it, or a thief could set the date
    back."""

    name: str
    public: str
    not_after: str | None = None

    def __post_init__(self) -> None:
        records.text("name", self.name)
        records.digits("public", self.public, 64)
        if self.not_after is not None:
            records.moment("not_after", self.not_after)


@dataclass(frozen=True)
class Trust:
    """The keys that are trusted, by their public digits."""

    keys: dict[str, TrustedKey]

    def refusal(self, record: bytes, signature: bytes | None, *, now_secs: float | None = None) -> str:
        """Why a record is not to be used; empty when a trusted key signed these very bytes, and is not over."""
        if signature is None:
            return "it is not signed"
        try:
            signed = Signature.decode(signature)
        except CorruptError as error:
            return f"its signature is damaged: {error.message}"
        now = utc(time.time() if now_secs is None else now_secs)
        key = self.keys.get(signed.public)
        if signed.record != sha256_hex(record):
            return "its signature is of another record"
        if key is None:
            return f"the key that signed it, {signed.public[:12]}, is not trusted"
        if not _verifies(signed):
            return f"its signature is not one of key {key.name}"
        for what, end in (("its signature", signed.expires), (f"key {key.name}", key.not_after)):
            if end is not None and end < now:
                return f"{what} expired on {end}"
        return ""


def read_trust(path: Path) -> Trust:
    """The keys in a trust file. Raises TrustError; one without keys trusts nobody, and is an error too."""
    hint = "graphcache keygen KEY --trust FILE writes one"
    try:
        value = strict_loads(read_file(path))
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']!r}, not {FORMAT!r}")
        keys = {key.public: key for key in (TrustedKey(**each) for each in value["keys"])}
    except OSError as error:
        raise TrustError(f"the trust file {path} cannot be read: {error.strerror}", hint=hint) from error
    except (ValueError, KeyError, TypeError, RecursionError, CorruptError) as error:
        raise TrustError(f"{path} is no trust file: {error}", hint=hint) from error
    if not keys:
        raise TrustError(f"the trust file {path} names no key", hint=hint)
    return Trust(keys)


def add_key(path: Path, key: TrustedKey) -> None:
    """Writes the trust file anew with `key` in it. Raises TrustError, StoreError."""
    keys = {**(read_trust(path).keys if path.exists() else {}), key.public: key}
    named: list[dict[str, Any]] = [vars(each) for _, each in sorted(keys.items())]
    text = json.dumps({"format": FORMAT, "keys": named}, indent=2, sort_keys=True) + "\n"
    write_file(path, text.encode(), replace=True, instead="choose another place")
    path.chmod(0o644)


def _verifies(signed: Signature) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise TrustError(f"signatures need the cryptography package: {error}", hint=INSTALL) from error
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed.public)).verify(
            bytes.fromhex(signed.signature), signed.message
        )
    except (InvalidSignature, ValueError):
        return False
    return True
