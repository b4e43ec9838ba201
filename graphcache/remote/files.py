"""What a remote is to everything above it: small and middle-sized files under names, read and written whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from graphcache.errors import StoreError
from graphcache.remote.url import RemoteError, RemoteUrl
from graphcache.store.files import is_temporary, write_file
from graphcache.store.reading import read_file

T = TypeVar("T")


class Files(Protocol):
    """Names are relative, with slashes. Every method raises RemoteError, after a bounded time."""

    url: RemoteUrl

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which calls the methods below."""

    async def get(self, name: str, limit_bytes: int) -> bytes | None:
        """The file's bytes, or None when there is none. Of a longer file, `limit_bytes` + 1 bytes or CorruptError."""

    async def put(self, name: str, data: bytes, *, new: bool) -> bool:
        """Writes the file; with `new`, only when there is none by that name, else returns False."""

    async def names(self, folder: str, *, deep: bool = False) -> dict[str, int | None]:
        """Files in `folder` (deep: and below it) with their sizes, where the remote tells them. May lag behind."""

    async def delete(self, name: str) -> None: ...


class FolderFiles:
    """A folder that several hosts share. Nothing is imported for it, and no lock is asked for."""

    def __init__(self, url: RemoteUrl) -> None:
        self.url = url
        self._root = Path(url.place)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def get(self, name: str, limit_bytes: int) -> bytes | None:
        def read() -> bytes | None:
            try:
                return read_file(self._root / name, limit_bytes=limit_bytes)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise self._error("read", name, error) from error

        return await asyncio.to_thread(read)

    async def put(self, name: str, data: bytes, *, new: bool) -> bool:
        def write() -> bool:
            try:
                return write_file(self._root / name, data, replace=not new, instead="choose another --remote")
            except StoreError as error:
                raise RemoteError(error.message, hint=error.hint) from error

        return await asyncio.to_thread(write)

    async def names(self, folder: str, *, deep: bool = False) -> dict[str, int | None]:
        def look() -> dict[str, int | None]:
            try:
                return dict(self._below(self._root / folder, deep))
            except OSError as error:
                raise self._error("list", folder, error) from error

        return await asyncio.to_thread(look)

    async def delete(self, name: str) -> None:
        def remove() -> None:
            try:
                (self._root / name).unlink(missing_ok=True)
            except OSError as error:
                raise self._error("remove", name, error) from error

        await asyncio.to_thread(remove)

    def _below(self, folder: Path, deep: bool) -> list[tuple[str, int | None]]:
        found: list[tuple[str, int | None]] = []
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return found
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                found += self._below(path, deep) if deep else []
            elif not is_temporary(path):
                found.append((path.relative_to(self._root).as_posix(), entry.stat().st_size))
        return found

    def _error(self, action: str, name: str, error: OSError) -> RemoteError:
        return RemoteError(
            f"cannot {action} {self._root / name}: {error.strerror or error}", hint="look at the shared folder"
        )


def open_files(url: RemoteUrl) -> Files:
    """The files of a remote. Nothing is asked of it yet. Raises RemoteError when a package that it needs is missing."""
    if url.scheme == "file":
        return FolderFiles(url)
    # The only import of fsspec: commands without such a remote do without.
    from graphcache.remote.object_store import ObjectStoreFiles

    return ObjectStoreFiles(url)
