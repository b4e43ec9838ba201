"""Token files that are kept, under the cache's local folder, by all that they follow from.

That is the data's and the tokenizer's files, byte by byte, what is ignored, the versions of the libraries and this
program's own source. So a second start finds the tokens, whatever the first was, and nothing stale is ever found.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphcache.errors import StoreError
from graphcache.location import cache_dir, local_dir
from trainer.data.errors import DataError
from trainer.data.token_file import DamagedError, TokenFile, open_tokens

# Of a checkpoint's folder: everything that transformers' tokenizer may read.
_MODEL_FILES = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json", "generation_config.json",
    "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
_TEMPLATES = "additional_chat_templates"
_PACKAGES = ("transformers", "tokenizers", "jinja2", "pyarrow", "numpy")
_UNUSED_SECS = 30 * 24 * 3600
_TEMPORARY = ".tmp-"


def tokens_of(
    data: Path, model: Path, ignored: tuple[str, ...], cache: str | None, say: Callable[[str], None]
) -> TokenFile:
    """The tokens of a data file: as they are kept, or made and kept. Raises DataError.

    model: the checkpoint's folder; cache: --cache; say: is told what takes long, and what is wrong with what is kept
    """
    check_regular(data)
    folder = _kept_in(cache)
    if folder is not None:
        try:
            key = _key(data, model, ignored)
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error
        try:
            return _kept(folder, key, data, model, ignored, say)
        except OSError as error:
            say(f"tokens   cannot be kept in {folder}: {error.strerror or error}; they are made for this run alone")
    with tempfile.TemporaryDirectory(prefix="graphcache-tokens-") as folder_name:
        return _made(Path(folder_name, "tokens"), model, data, ignored, say)


def _kept_in(cache: str | None) -> Path | None:
    """None where no folder of this user can be told."""
    try:
        local = local_dir(cache_dir(cache))
    except StoreError:
        return None
    return local and local / "tokens"


def check_regular(path: Path) -> None:
    """Checks that `path` is a file that can be read twice. Raises DataError."""
    try:
        # Asked before it is opened, which alone would wait for the writer of a pipe; --resume reads it again.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file", hint="write what comes from a pipe to a file first")
        with path.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", hint="--data names one file") from error


def _kept(
    folder: Path, key: str, data: Path, model: Path, ignored: tuple[str, ...], say: Callable[[str], None]
) -> TokenFile:
    place = folder / key
    found = _opened(place, lambda line: None)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{key}.lock"):
        # Made by the one who held the lock before, perhaps.
        found = _opened(place, say)
        if found is not None:
            return found
        for path in (place, *folder.glob(f"{_TEMPORARY}{key}-*")):  # damaged, or left by a process that was killed
            shutil.rmtree(path, ignore_errors=True)
        _forget_unused(folder)
        temporary = folder / f"{_TEMPORARY}{key}-{os.urandom(4).hex()}"
        try:
            _write(temporary, model, data, ignored, say)
            if _key(data, model, ignored) != key:
                raise DataError(f"{data} or the tokenizer's files have changed while they were read")
            temporary.rename(place)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return open_tokens(place)


def _made(folder: Path, model: Path, data: Path, ignored: tuple[str, ...], say: Callable[[str], None]) -> TokenFile:
    """Tokens for this run alone. Their folder is deleted; the files stay mapped."""
    try:
        _write(folder, model, data, ignored, say)
        return open_tokens(folder)
    except OSError as error:
        raise DataError(
            f"no room for tokens in {folder.parent}: {error.strerror or error}", hint="set TMPDIR to another folder"
        ) from error


def _write(folder: Path, model: Path, data: Path, ignored: tuple[str, ...], say: Callable[[str], None]) -> None:
    from trainer.data.make_tokens import make_tokens

    make_tokens(folder, model, data, ignored, say)


def _opened(place: Path, say: Callable[[str], None]) -> TokenFile | None:
    """What is kept there and whole; its time is that of its last use."""
    try:
        found = open_tokens(place)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        say(f"tokens   {error}: they are made again")
        return None
    with contextlib.suppress(OSError):
        os.utime(place)
    return found


def _forget_unused(folder: Path) -> None:
    """Delete what nobody has used for a month."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_SECS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process makes what the others would make too. Without locks each makes its own, and one is kept."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _key(data: Path, model: Path, ignored: tuple[str, ...]) -> str:
    """SHA-256 of everything that tokens follow from."""
    templates = sorted((model / _TEMPLATES).glob("*")) if (model / _TEMPLATES).is_dir() else []
    files = [model / name for name in _MODEL_FILES] + templates
    parts = {
        "data": _file_digest(data),
        # The end of its name says what it is.
        "suffixes": [suffix.lower() for suffix in data.suffixes[-2:]],
        "model": {str(path.relative_to(model)): _file_digest(path) for path in files if path.exists()},
        "ignored": sorted(ignored),
        "versions": {name: _version(name) for name in _PACKAGES},
        "source": {path.name: _file_digest(path) for path in sorted(Path(__file__).parent.glob("*.py"))},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
