"""Private keys: made, kept in files that only their owner can read, and used to sign. Never printed, logged or passed.

Ed25519 of the `cryptography` package: signatures are no place for code of one's own.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphcache.digest import sha256_hex
from graphcache.store.files import store_error
from graphcache.trust.errors import TrustError
from graphcache.trust.signature import Signature, message, utc

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The key itself in PEM, for clusters that hand secrets over so; and the name of a file that has it.
KEY_VARIABLE, KEY_FILE_VARIABLE = "GRAPHCACHE_SIGNING_KEY", "GRAPHCACHE_SIGNING_KEY_FILE"
INSTALL = "pip install 'graphcache[trust]'"


@dataclass(frozen=True)
class Signer:
    """valid_secs: how long what it signs is good for; None for ever."""

    key: Ed25519PrivateKey
    valid_secs: float | None = None

    def __repr__(self) -> str:
        return f"Signer({self.public[:12]})"

    @property
    def public(self) -> str:
        """64 hexadecimal digits."""
        return self.key.public_key().public_bytes_raw().hex()

    def sign(self, record: bytes) -> Signature:
        """The signature over a record of a store."""
        digest, now, public = sha256_hex(record), time.time(), self.public
        expires = None if self.valid_secs is None else utc(now + self.valid_secs)
        signed = self.key.sign(message(digest, public, utc(now), expires))
        return Signature(record=digest, public=public, signed=utc(now), expires=expires, signature=signed.hex())


def make_key(path: Path) -> str:
    """Writes a new private key to `path`, for its owner alone; returns the public one. Raises TrustError, StoreError.

    A file that is there stays: what was signed with it could not be signed again.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise TrustError(f"{path} is there, and is not overwritten", hint="choose another name") from error
    except OSError as error:
        raise store_error("write", path, error, "choose another place") from error
    with open(handle, "wb") as file:
        file.write(pem)
    return Signer(key).public


def signer_of_environment() -> Signer | None:
    """The key that the environment names, by value or by file; None for neither. Raises TrustError."""
    text, path = os.environ.get(KEY_VARIABLE, ""), os.environ.get(KEY_FILE_VARIABLE, "")
    if text and path:
        raise TrustError(f"both {KEY_VARIABLE} and {KEY_FILE_VARIABLE} are set", hint="unset one of them")
    if text:
        return _signer(text.encode(), KEY_VARIABLE)
    return _signer(_read_private(Path(path)), path) if path else None


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(1 << 16)
    except OSError as error:
        raise TrustError(f"the signing key {path} cannot be read: {error.strerror}") from error
    # A mounted Kubernetes secret is root's, and readable for the pod's group alone when it says defaultMode 0440.
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise TrustError(
            f"the signing key {path} has mode {stat.filemode(status.st_mode)}: others can use it",
            hint=f"chmod 600 {path}, and make a new one if others could read it",
        )
    return data


def _signer(pem: bytes, source: str) -> Signer:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise TrustError(f"signing needs the cryptography package: {error}", hint=INSTALL) from error
    try:
        key = serialization.load_pem_private_key(pem, None)
    except Exception:
        # Not chained: some messages quote what they could not read.
        raise TrustError(
            f"{source} holds no private key in PEM without a password", hint="graphcache keygen makes one"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise TrustError(f"{source} holds a key that is not Ed25519", hint="graphcache keygen makes one")
    return Signer(key)
