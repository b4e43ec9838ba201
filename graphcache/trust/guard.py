"""What a store does about signatures: makes them where it has a key, and asks for them where it has a trust file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from graphcache.config_file import read_config
from graphcache.errors import CorruptError
from graphcache.store.files import write_file
from graphcache.store.reading import read_file
from graphcache.trust.keys import Signer, signer_of_environment
from graphcache.trust.signature import Signature, signature_path
from graphcache.trust.trusted import Trust, read_trust

TRUST_VARIABLE = "GRAPHCACHE_TRUST"


@dataclass(frozen=True)
class Guard:
    """signer: signs what is committed; trust: what is read has to be signed by one of its keys. None: neither."""

    signer: Signer | None = None
    trust: Trust | None = None

    def sign(self, record: bytes) -> bytes | None:
        """A signature over a record that this process made."""
        return None if self.signer is None else self.signer.sign(record).encode()

    def refusal(self, record: bytes, signature: bytes | None) -> str:
        """Why the record is not to be used; empty when it may."""
        return "" if self.trust is None else self.trust.refusal(record, signature)

    def refusal_in(self, root: Path, record: bytes) -> str:
        """The same for a record of the store in `root`."""
        return "" if self.trust is None else self.trust.refusal(record, kept_signature(root, record))


def guard_of_environment(trust: Path | None = None) -> Guard:
    """The guard that the environment, or the config file, asks for; `trust` goes before their trust file. Raises
    TrustError, ConfigError."""
    named, _ = named_trust(trust)
    return Guard(signer_of_environment(), read_trust(Path(named)) if named else None)


def named_trust(option: Path | None = None) -> tuple[str, str]:
    """The trust file, empty for none, and what names it, for people."""
    if option:
        return str(option), "--trust"
    if os.environ.get(TRUST_VARIABLE):
        return os.environ[TRUST_VARIABLE], TRUST_VARIABLE
    config = read_config()
    return (config.trust, str(config.path)) if config.trust else ("", "nothing")


def kept_signature(root: Path, record: bytes) -> bytes | None:
    """The signature over a record that the store in `root` has; None without one, or with one that is unreadable."""
    try:
        return read_file(signature_path(root, record))
    except (OSError, CorruptError):
        return None


def keep_signature(root: Path, record: bytes, signature: bytes) -> None:
    """Keeps a signature in the store in `root`. Raises StoreError."""
    write_file(signature_path(root, record), signature, replace=True)


def forget_signature(root: Path, record: bytes) -> None:
    """Removes the signature over a record that is replaced; one that cannot be removed goes with gc."""
    with contextlib.suppress(OSError):
        signature_path(root, record).unlink(missing_ok=True)


def signer_of(signature: bytes | None) -> str | None:
    """The public key that a signature names, unchecked; None without one."""
    try:
        return None if signature is None else Signature.decode(signature).public
    except CorruptError:
        return None
