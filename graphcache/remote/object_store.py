"""Remotes through fsspec: s3, gs, http(s), memory. Tries are few, waits bounded, and a remote that fails stays failed.

fsspec's own retries and those of its clients are off, where they can be: they would multiply with these.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from graphcache.errors import UsageError
from graphcache.remote.url import READ_ONLY, RemoteError, RemoteUrl

T = TypeVar("T")

TIMEOUT_VARIABLE = "GRAPHCACHE_REMOTE_TIMEOUT"
# Of one request, before its bytes count; three tries of a silent server take three times that.
TIMEOUT_SECS = 10.0
TRIES = 3
# Before the second try; doubled before the third, each half of it by chance so that many pods do not come together.
PAUSE_SECS = 0.2
# A slower link than this times out: 1 MB/s.
SLOWEST_BYTES_PER_SEC = 1e6
CONCURRENCY = 32
CONNECT_SECS = 5.0
# Of folders in a store, as `entries/ab/<program>/<key>.json` has most: a server's links lead no deeper.
LEVELS = 3
NO_BUCKET, NO_BUCKET_HINT = "there is no such bucket", "make it, or correct the URL"
# Errors that asking again does not change, besides those that Python has classes for.
_FINAL = (errno.EINVAL, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Listed:
    """A file in a listing. modified_secs: Unix time by the remote's clock; None where it does not tell."""

    size_bytes: int
    modified_secs: float | None


class ObjectStoreFiles:
    """Files under the URL, as `graphcache.remote.files.Files` has them."""

    def __init__(self, url: RemoteUrl) -> None:
        self.url = url
        self._timeout_secs = timeout_secs()
        self._fs = _open(url, self._timeout_secs)
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._root = f"{url.scheme}://{url.place}" if url.scheme in READ_ONLY else url.place
        self._down: RemoteError | None = None
        self._has_bucket = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._fs.loop).result()

    async def get(self, name: str, limit_bytes: int) -> bytes | None:
        async def ask() -> bytes | None:
            try:
                found: bytes = await self._fs._cat_file(self._path(name), start=0, end=limit_bytes + 1)
            except FileNotFoundError as error:
                await self._check_bucket(error)
                return None
            except OSError as error:
                # The range of an empty file cannot be satisfied.
                if "range" in str(error).lower():
                    return b""
                raise
            return found

        return await self._try(f"read {name}", ask, limit_bytes)

    async def put(self, name: str, data: bytes, *, new: bool) -> bool:
        if not self.url.writable:
            raise RemoteError(f"{self.url} can only be read", hint="push to the s3, gs or file URL behind it")

        async def ask() -> bool:
            try:
                await self._fs._pipe_file(self._path(name), data, mode="create" if new else "overwrite")
            except FileExistsError:
                return False
            except FileNotFoundError as error:
                await self._check_bucket(error)
                raise
            return True

        return await self._try(f"write {name}", ask, len(data))

    async def names(self, folder: str, *, deep: bool = False) -> dict[str, int | None]:
        if deep and self.url.scheme in READ_ONLY:
            return await self._names_below(folder, LEVELS)

        async def ask() -> dict[str, int | None]:
            path = self._path(folder) + "/"
            try:
                if deep:
                    found = list((await self._fs._find(path, detail=True)).values())
                else:
                    found = await self._fs._ls(path, detail=True, **self._fresh)
                if not found:
                    await self._check_bucket()
            except FileNotFoundError as error:
                await self._check_bucket(error)
                return {}
            return {self._name(info["name"]): info.get("size") for info in found if info["type"] == "file"}

        if self.url.scheme in READ_ONLY:
            return dict.fromkeys((await self._page(folder) or ([], []))[0])
        # A whole listing has many pages.
        return await self._try(f"list {folder}", ask, 0, patience=10 if deep else 1)

    async def _names_below(self, folder: str, levels: int) -> dict[str, int | None]:
        """fsspec's own walk takes a folder that cannot be listed for an empty one."""
        page = await self._page(folder)
        if page is None:
            raise RemoteError(
                f"{self.url} does not list {folder}", hint="graphcache pull --manifest FILE needs no list"
            )
        files, folders = page
        below = (self._names_below(each, levels - 1) for each in folders if levels > 1)
        found: dict[str, int | None] = dict.fromkeys(files)
        for each in await asyncio.gather(*below):
            found.update(each)
        return found

    async def _page(self, folder: str) -> tuple[list[str], list[str]] | None:
        """Files and folders by a web server's page of a folder; None where it gives no such pages."""

        async def ask() -> tuple[list[str], list[str]] | None:
            try:
                found = await self._fs._ls(self._path(folder) + "/", detail=True)
            except FileNotFoundError:
                return [], []
            except Exception as error:
                # A web server that does not list folders says so; exact names can be read all the same.
                if getattr(error, "status", 0) in (403, 405):
                    return None
                raise
            files = [self._name(info["name"]) for info in found if info["type"] == "file"]
            return files, [self._name(info["name"]).rstrip("/") for info in found if info["type"] == "directory"]

        return await self._try(f"list {folder}", ask, 0)

    async def listed(self, folder: str) -> dict[str, Listed]:
        """Files in `folder` and below it, with when each was written. May lag behind, as `names`."""

        async def ask() -> dict[str, Listed]:
            try:
                found = await self._fs._find(self._path(folder) + "/", detail=True)
            except FileNotFoundError as error:
                await self._check_bucket(error)
                return {}
            if not found:
                await self._check_bucket()
            return {self._name(name): Listed(info.get("size") or 0, _modified(info)) for name, info in found.items()}

        return await self._try(f"list {folder}", ask, 0, patience=10)

    async def modified(self, name: str) -> float | None:
        """Unix time of the file's last write, asked of itself and not of a listing. None when it is gone, or the remote
        does not tell."""

        async def ask() -> float | None:
            try:
                return _modified(await self._fs._info(self._path(name), **self._fresh))
            except FileNotFoundError:
                return None

        return await self._try(f"look at {name}", ask, 0)

    async def delete(self, name: str) -> None:
        async def ask() -> None:
            try:
                await self._fs._rm_file(self._path(name))
            except FileNotFoundError:
                return

        await self._try(f"remove {name}", ask, 0)

    @property
    def _fresh(self) -> dict[str, bool]:
        return {"refresh": True} if self.url.scheme in ("s3", "gs") else {}

    async def _try(self, what: str, ask: Callable[[], Awaitable[T]], size_bytes: int, *, patience: float = 1.0) -> T:
        """Asks up to TRIES times. Raises RemoteError; then all later calls do, at once."""
        limit_secs = patience * self._timeout_secs + min(size_bytes, 1 << 28) / SLOWEST_BYTES_PER_SEC
        async with self._slots:
            for count in range(TRIES):
                if self._down is not None:
                    raise self._down
                try:
                    return await asyncio.wait_for(ask(), limit_secs)
                except RemoteError as error:
                    self._down = self._down or error
                    raise
                except Exception as error:
                    last = error
                    if _is_final(error) or count == TRIES - 1:
                        break
                await asyncio.sleep(PAUSE_SECS * 2**count * random.uniform(0.5, 1))
        failure = RemoteError(f"{self.url}: cannot {what}: {_reason(last, limit_secs)}", hint=_hint(self.url, last))
        self._down = self._down or failure
        raise failure from last

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _name(self, path: str) -> str:
        return path.removeprefix("/").removeprefix(self._root.removeprefix("/")).removeprefix("/")

    async def _check_bucket(self, error: FileNotFoundError | None = None) -> None:
        """A bucket that is not there is no miss: a misspelt name would compile everything again."""
        if self.url.scheme == "gs" and not self._has_bucket:
            # The client says of a file and of a bucket alike that there is none.
            try:
                await self._fs._call("GET", "b/{}/o", self._root.partition("/")[0], maxResults=1, json_out=True)
            except FileNotFoundError as lacking:
                raise RemoteError(f"{self.url}: {NO_BUCKET}", hint=NO_BUCKET_HINT) from lacking
            self._has_bucket = True
        if "bucket does not exist" in str(error).lower():
            raise RemoteError(f"{self.url}: {NO_BUCKET}", hint=NO_BUCKET_HINT) from error


def _modified(info: Mapping[str, Any]) -> float | None:
    """When a file was written, by the names that s3fs, gcsfs and fsspec's memory have for it."""
    found = info.get("LastModified") or info.get("mtime") or info.get("created")
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else None


def timeout_secs() -> float:
    """The time limit of one request, from the environment. Raises UsageError."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        found = float(text) if text else TIMEOUT_SECS
    except ValueError:
        found = math.nan
    if not 0 < found < 1e6:
        raise UsageError(f"{TIMEOUT_VARIABLE} is {text!r}, not a number of seconds")
    return found


def _open(url: RemoteUrl, patience_secs: float) -> AsyncFileSystem:
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    connect_secs = min(CONNECT_SECS, patience_secs)
    if url.scheme == "s3":
        options["config_kwargs"] = {
            "connect_timeout": connect_secs,
            "read_timeout": patience_secs,
            "retries": {"max_attempts": 0},
            "max_pool_connections": CONCURRENCY,
        }
    elif url.scheme in READ_ONLY:
        # Proxies and ~/.netrc of the environment count, as they do for curl.
        options["client_kwargs"] = {"trust_env": True}
        options["encoded"] = False
    try:
        if url.scheme == "s3":
            options["session"] = _aws_session()
        fs = _gcs(options) if url.scheme == "gs" else fsspec.filesystem(url.scheme, **options)
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs"}.get(url.scheme, "aiohttp")
        raise RemoteError(
            f"{url} needs {package}: {error}",
            hint=f"pip install 'graphcache[{'remote-gs' if url.scheme == 'gs' else 'remote'}]'",
        ) from error
    if url.scheme == "s3":
        fs.retries = 1
    return fs if fs.async_impl else AsyncFileSystemWrapper(fs, asynchronous=False)


def _gcs(options: dict[str, Any]) -> AsyncFileSystem:
    """The client without its extensions, which ask for the kind of the bucket before each request, by gRPC."""
    from gcsfs.core import GCSFileSystem

    # Of each file that is not there it says so.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    return GCSFileSystem(**options)


@cache
def _aws_session() -> Any:
    """One a process: each reads botocore's descriptions of S3 anew, which takes a third of a second."""
    from aiobotocore.session import AioSession

    return AioSession()


def _is_final(error: Exception) -> bool:
    """Whether asking again can help: not for what is refused, malformed, or needs credentials that are not here."""
    if isinstance(error, PermissionError | NotImplementedError | TypeError | ValueError):
        return True
    status = getattr(error, "status", 0)
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 429):
        return True
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError") or (
        isinstance(error, OSError) and error.errno in _FINAL
    )


def _reason(error: Exception, limit_secs: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {limit_secs:.0f} s, {TRIES} times"
    return f"{str(error) or type(error).__name__}".strip().splitlines()[0][:300]


def _hint(url: RemoteUrl, error: Exception) -> str:
    if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return f"credentials for {url.scheme} come from the environment; do they allow this?"
    if isinstance(error, ssl.CertificateError):
        return "SSL_CERT_FILE names a file of the CAs to trust, when the server's is one of your own"
    return "is it reachable from here (address, proxy, AWS_ENDPOINT_URL)? Other work goes on without it"
