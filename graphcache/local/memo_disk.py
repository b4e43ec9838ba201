"""What the memo's SQLite rows may hold: JSON and bytes, never a pickle.

diskcache's own Disk unpickles any row whose mode says so, which runs whatever code the row's author wished
(CVE-2025-69872). This one refuses such rows, and rows that name files: they are never written here, so whoever wrote
one was not us. Imported by `memo` when a memo is first used: diskcache takes 17 ms to import.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import MODE_RAW

# Seconds to wait for another process that writes.
LOCK_TIMEOUT_SECS = 2
# A larger value is not kept: reading it would cost what it saves.
VALUE_LIMIT_BYTES = 32 * 1024 * 1024


class RefusedRowError(ValueError):
    """A row that this class would not have written."""


class JsonDisk(diskcache.Disk):  # type: ignore[misc]
    """Keys are strings; values are bytes (a BLOB) or JSON (as TEXT), always in the database itself."""

    def put(self, key: str) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"memo keys are strings, not {key!r}")
        return key, True

    def get(self, key: Any, raw: Any) -> str | None:
        """The key of a row; None for one that we did not write."""
        return key if raw and type(key) is str else None

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, Any]:
        if type(value) is bytes:
            return 0, MODE_RAW, None, sqlite3.Binary(value)
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        if len(text) > VALUE_LIMIT_BYTES:
            raise ValueError(f"a memo value of {len(text):,} bytes; the limit is {VALUE_LIMIT_BYTES:,}")
        return 0, MODE_RAW, None, text

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> Any:
        """A row's value.

        Raises RefusedRowError for a pickle, a file or any other thing, ValueError for text that is not JSON."""
        if mode != MODE_RAW or filename is not None or type(value) not in (bytes, str):
            raise RefusedRowError(f"mode {mode!r}, file {filename!r}")
        return value if type(value) is bytes else json.loads(value)

    def remove(self, file_path: Any) -> None:
        """Nothing: no row of ours has a file, and one that was planted could name any."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """SQLite's and diskcache's errors as built-in ones: TimeoutError for a lock, OSError for the disk.

    What is left as sqlite3.DatabaseError is a database whose contents are at fault.
    """
    try:
        yield
    except diskcache.Timeout:
        raise TimeoutError("another process holds the database") from None
    except sqlite3.OperationalError as error:
        raise OSError(str(error)) from error


def open_cache(folder: Path) -> diskcache.Cache:
    """The database in `folder`, made when it is missing. Raises as `plain_errors` says."""
    with plain_errors():
        _wait_for_lock(folder / diskcache.core.DBNAME)
        return diskcache.Cache(
            str(folder),
            timeout=LOCK_TIMEOUT_SECS,
            disk=JsonDisk,
            # No size limit and no culling: `graphcache gc` decides what goes.
            eviction_policy="none",
            cull_limit=0,
            size_limit=2**62,
            statistics=0,
            # A database that another process truncates would kill a process that has it mapped (SIGBUS).
            sqlite_mmap_size=0,
        )


def _wait_for_lock(database: Path) -> None:
    """diskcache writes when it opens, and tries each of its statements for 60 s. Raises after LOCK_TIMEOUT_SECS."""
    if database.exists():
        with contextlib.closing(sqlite3.connect(database, LOCK_TIMEOUT_SECS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
