"""The records of a data file, with the line or the number that each is found by.

JSON lines, a JSON array, both also compressed with gzip, and Parquet hold records; any other file is one text. Which it
is says the end of its name: JSON is never trained on as plain text. No file is ever in memory as a whole. pyarrow is
imported for Parquet only.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from graphcache.strict_json import DuplicateKeyError, strict_loads
from trainer.data.blocks import AFTER_CHARS, TextBlock, last_cut
from trainer.data.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
PARQUET_SUFFIX = ".parquet"
_ONE_A_LINE = f"each line of a {', '.join(JSON_SUFFIXES)} file is one JSON object, or it is one array of objects"
_HINT = "--data is a .jsonl, .json, .parquet or text file in UTF-8"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
PARQUET_ROWS = 1024
BLOCK_BYTES = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")  # what JSON takes for white space
_DECODER = json.JSONDecoder()


def raw_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Every record with its number from 1: bytes of JSON (a line, or an array's item), or a row of Parquet as a dict.

    The number is the line's where records are lines. A text comes in blocks, all of number 1. Raises DataError.
    """
    suffix = _suffix(path)
    with _reading(path):
        if suffix == PARQUET_SUFFIX:
            yield from enumerate(_rows(path), 1)
            return
        with _open(path) as file:
            if suffix in JSON_SUFFIXES:
                yield from _json_records(path, file)
            else:
                yield from ((1, block) for block in _text_blocks(path, file))


def decode(where: str, raw: bytes | dict[str, Any]) -> dict[str, Any]:
    """The record. Raises DataError."""
    if isinstance(raw, dict):
        _check_nulls(where, raw)
        return raw
    _check_bytes(where, raw)
    try:
        record = strict_loads(raw.decode("utf-8-sig"), constants=True)
    except DuplicateKeyError as error:
        raise DataError(f"{where}: {error}", hint="keep one of the two: the other would not be trained on") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON in UTF-8: {error}", hint=_ONE_A_LINE) from error
    except RecursionError as error:
        raise DataError(f"{where}: JSON that is nested too deeply to be read") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON {type(record).__name__}, not an object", hint=_ONE_A_LINE)
    return record


def _check_nulls(where: str, row: dict[str, Any]) -> None:
    """Every row of Parquet has all fields of its columns: null where a tool or a call has none, and where it has null.

    A template would write it either way. Raises DataError.
    """
    messages = row.get("messages") or row.get("conversations")
    turns = [turn for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
    calls = [call for turn in turns for call in turn.get("tool_calls") or () if isinstance(call, dict)]
    # What templates write of a call: not its id.
    written = [{"function": call.get("function") or {}, "arguments": call.get("arguments") or {}} for call in calls]
    for name, value in (("tools", row.get("tools")), ("tool_calls", written)):
        null = next(_nulls(value), None)
        if null is not None:
            raise DataError(
                f"{where}: {name} has null for {null}, and Parquet does not tell null from a field that is not there",
                hint=f"keep {name} as JSON text in that column, or the records as .jsonl",
            )


def _nulls(value: Any, path: str = "") -> Iterator[str]:
    """Where nulls are in a nested value."""
    if isinstance(value, list):
        for item in value:
            yield from _nulls(item, path)
    elif isinstance(value, dict):
        for name, item in value.items():
            inner = f"{path}.{name}".lstrip(".")
            if item is None:
                yield inner
            else:
                yield from _nulls(item, inner)


def _text_blocks(path: Path, file: IO[bytes]) -> Iterator[TextBlock]:
    """A text without its byte order mark."""
    decoder, lines, text, begins, looked_at = codecs.getincrementaldecoder("utf-8-sig")(), 0, "", True, 0
    while data := file.read(BLOCK_BYTES):
        if end := last_cut(text, looked_at):
            yield TextBlock(text[:end], begins, text[end : end + AFTER_CHARS])
            text, begins = text[end:], False
        looked_at = max(len(text) - AFTER_CHARS, 0)
        text += _decoded(path, decoder, data, lines)
        lines += data.count(b"\n")
    yield TextBlock(text + _decoded(path, decoder, b"", lines, final=True), begins, "")


def _decoded(path: Path, decoder: codecs.IncrementalDecoder, data: bytes, lines: int, *, final: bool = False) -> str:
    """lines: how many there are before `data`. Raises DataError."""
    _check_bytes(str(path), data)
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        line = lines + error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8: {error.reason}") from error


def _json_records(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The file is looked at twice: the one line of an array may be as long as the file."""
    window = _Window(path, file)
    if window.next() == "[":
        yield from _array(path, window)
        return
    file.seek(0)
    for number, line in enumerate(file, 1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            yield number, text


class _Window:
    """The part of a file's text that is looked at."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._lines = "", 0, 0

    def next(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        """Go behind that character."""
        self._at += 1

    def value(self) -> str:
        """The JSON value that begins at that character, as it is written. Raises JSONDecodeError, RecursionError."""
        while True:
            try:
                _, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            # A number may go on behind what was read.
            if end < len(self._text) or not self._more():
                value, self._at = self._text[self._at : end], end
                return value

    def _more(self) -> bool:
        """Read on, twice as much when one value is longer than what was read. Whether there was more."""
        data = self._file.read(max(BLOCK_BYTES, len(self._text) - self._at))
        text = _decoded(self._path, self._decoder, data, self._lines, final=not data)
        self._lines += data.count(b"\n")
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(data)


def _array(path: Path, window: _Window) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array, counted from 1."""
    number = 1
    try:
        window.next()
        window.skip()
        at_end = window.next() == "]"
        while not at_end:
            yield number, window.value().encode()
            at_end = window.next() == "]"
            if not at_end:
                _expect(window.next() == ",", "a comma is expected")
                window.skip()
                window.next()
            number += 1
        window.skip()
        _expect(not window.next(), "something follows it")
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{path}: not one JSON array in UTF-8: at item {number}: {why}", hint=_ONE_A_LINE) from error
    except RecursionError as error:
        raise DataError(f"{path}:{number}: JSON that is nested too deeply to be read") from error


def _expect(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _check_bytes(where: str, data: bytes) -> None:
    if data.startswith(_UTF16) or b"\0" in data:
        kind = "UTF-16, it seems" if data.startswith(_UTF16) or data[1::2].count(0) > len(data) // 8 else "binary"
        raise DataError(
            f"{where}: not text in UTF-8: it holds bytes that are 0 ({kind})", hint="iconv -t UTF-8 converts a text"
        )


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def _open(path: Path) -> Any:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what reading can fail with into DataError."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} cannot be read as gzip: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", hint=_HINT) from error
