"""A memo of what can be computed again (tensor tables, source hashes, programs), kept on the local disk.

It may lose everything at any time and is never needed: whatever fails in it (a folder that cannot be written, a full
disk, a damaged database, a row that someone planted) is a miss, and `trouble` says what it was. Whoever can write
the folder can choose what is remembered, so a folder of another user, or one that everybody may write, is not used.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from graphcache.location import local_dir

NO_PLACE = "there is no folder for it: neither XDG_CACHE_HOME nor HOME names one by its whole path"


def memo_of(cache: Path, *, building: bool = False, read_only: bool = False) -> Memo:
    """The memo that belongs to the cache folder `cache`, which the caller is about to fill (`building`) or must leave
    as it is (`read_only`)."""
    local = local_dir(cache, building=building, read_only=read_only)
    return Memo(local and local / "memo")


class Memo:
    """String keys to JSON values or bytes. Nothing is opened, and diskcache not imported, before the first use.

    folder:  None where there is no place for one; it remembers nothing then
    trouble: why the memo is not in use, or what its last failure was; empty when all is well
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.trouble = NO_PLACE if folder is None else ""
        self._cache: Any = None
        self._given_up = False

    def get(self, key: str) -> Any | None:
        """What was remembered under `key`, or None."""
        return self._try(lambda cache: cache.get(key))

    def set(self, key: str, value: Any) -> None:
        """Remember a JSON value or bytes; None cannot be told from a miss."""
        self._try(lambda cache: cache.set(key, value))

    def update(self, keys: Iterable[str], change: Callable[[Any | None], Any]) -> None:
        """Replace each key's value by `change(value)`, or none of them; other processes wait."""

        def change_all(cache: Any) -> None:
            with cache.transact():
                for key in keys:
                    cache.set(key, change(_readable(cache, key)))

        self._try(change_all)

    def items(self, prefix: str) -> dict[str, Any]:
        """All that is remembered under keys that start with `prefix`, unreadable rows left out."""

        def read(cache: Any) -> dict[str, Any]:
            keys = [key for key in cache if key is not None and key.startswith(prefix)]
            values = ((key, _readable(cache, key)) for key in keys)
            return {key: value for key, value in values if value is not None}

        return self._try(read) or {}

    def delete(self, keys: Iterable[str]) -> None:
        """Forget `keys`."""

        def delete_all(cache: Any) -> None:
            with cache.transact():
                for key in keys:
                    cache.delete(key)

        self._try(delete_all)

    def close(self) -> None:
        """Close the database; a later use opens it again."""
        if self._cache is not None:
            with contextlib.suppress(Exception):
                self._cache.close()
            self._cache = None

    def __enter__(self) -> Memo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _try(self, action: Callable[[Any], Any]) -> Any | None:
        """`action` on the open database, or None for any failure of it."""
        if self._given_up or self.folder is None:
            return None
        try:
            if self._cache is None:
                self._cache = _open(self.folder)
            from graphcache.local.memo_disk import plain_errors

            with plain_errors():
                return action(self._cache)
        except Exception as error:  # whatever it is, the memo is not worth failing for
            self._fail(self.folder, error)
            return None

    def _fail(self, folder: Path, error: Exception) -> None:
        """Note the failure; give up on the database unless it was one row's or another process's lock.

        A database whose contents are at fault is deleted, so that the next process starts with an empty one.
        """
        self.trouble = f"{folder}: {type(error).__name__}: {error}"
        if isinstance(error, ValueError | TypeError | RecursionError | TimeoutError) and self._cache is not None:
            return
        self._given_up = True
        self.close()
        if not isinstance(error, OSError | MemoryError | ImportError):
            for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
                with contextlib.suppress(OSError):
                    (folder / name).unlink()


def _open(folder: Path) -> Any:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
        raise PermissionError(f"owned by user {status.st_uid}, mode {stat.filemode(status.st_mode)}: not trusted")
    from graphcache.local.memo_disk import open_cache

    return open_cache(folder)


def _readable(cache: Any, key: str) -> Any | None:
    """A row's value, or None for a row that is refused."""
    try:
        return cache.get(key)
    except (ValueError, RecursionError):
        return None
