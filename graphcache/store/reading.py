"""Reading what may be damaged: sizes are known before bytes are read, and nothing passes unchecked."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from graphcache.artifact import Artifact
from graphcache.digest import checksum, sha256_hex
from graphcache.errors import CorruptError
from graphcache.process.regular_file import NotRegularError, open_regular
from graphcache.store.base import Entry

# An entry is 2 KB: a file that is far larger is no entry, and need not be read to know.
RECORD_LIMIT_BYTES = 1 << 20


def read_file(path: Path, *, exactly_bytes: int | None = None, limit_bytes: int = RECORD_LIMIT_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError; CorruptError for anything else, or another size."""
    try:
        handle = open_regular(path)
    except NotRegularError as error:
        raise CorruptError(str(error)) from error
    with open(handle, "rb") as file:
        size_bytes = os.fstat(handle).st_size
        if exactly_bytes is not None and size_bytes != exactly_bytes:
            raise CorruptError(f"{size_bytes:,} bytes where its entry says {exactly_bytes:,}")
        if exactly_bytes is None and size_bytes > limit_bytes:
            raise CorruptError(f"{size_bytes:,} bytes, above the limit of {limit_bytes:,}")
        return file.read()


def check_object(entry: Entry, data: bytes, *, sha256: bool = False) -> Artifact:
    """The artifact in `data`, when it is the one that `entry` names. Raises CorruptError.

    By XXH3-128 on every load, which finds bit rot; with `sha256` also by the name, which finds forgery.
    """
    if len(data) != entry.object.size_bytes:
        raise CorruptError(f"{len(data):,} bytes where its entry says {entry.object.size_bytes:,}")
    if checksum(data) != entry.object.xxh3_128:
        raise CorruptError("its XXH3 is not what its entry says")
    if sha256 and sha256_hex(data) != entry.object.sha256:
        raise CorruptError("its SHA-256 is not its name")
    artifact = Artifact.parse(data)
    if artifact.key != entry.key:
        raise CorruptError("it was made for another key than its entry's")
    return artifact


def check_name(path: Path, sha256: str) -> None:
    """Raises CorruptError unless the file's SHA-256 is `sha256`; OSError when it cannot be read. In bounded memory."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise CorruptError(f"its SHA-256 is {found[:12]}..., not its name")
