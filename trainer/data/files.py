"""The records of a data file, with the line or the number that each is found by.

JSON lines, a JSON array, both also compressed with gzip, and Parquet hold records; any other file is one text. Which it
is says the end of its name: JSON is never trained on as plain text. pyarrow is imported for Parquet only.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from graphcache.strict_json import DuplicateKeyError, strict_loads
from trainer.data.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
PARQUET_SUFFIX = ".parquet"
_ONE_A_LINE = f"each line of a {', '.join(JSON_SUFFIXES)} file is one JSON object, or it is one array of objects"
_HINT = "--data is a .jsonl, .json, .parquet or text file in UTF-8"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
PARQUET_ROWS = 1024
_SPACE = re.compile(r"[ \t\n\r]*")  # what JSON takes for white space
_DECODER = json.JSONDecoder()


def holds_records(path: Path) -> bool:
    """Whether the file is one of records, not a text."""
    return _suffix(path) in (*JSON_SUFFIXES, PARQUET_SUFFIX)


def read_text(path: Path) -> str:
    """A whole file of plain text, without its byte order mark. Raises DataError."""
    with _reading(path), _open(path) as file:
        data: bytes = file.read()
    _check_bytes(str(path), data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8: {error.reason}") from error


def raw_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Every record with its number from 1: bytes of JSON (a line, or an array's item), or a row of Parquet as a dict.

    The number is the line's where records are lines. Raises DataError.
    """
    with _reading(path):
        if _suffix(path) == PARQUET_SUFFIX:
            yield from enumerate(_rows(path), 1)
            return
        with _open(path) as file:
            yield from _json_records(path, file)


def decode(where: str, raw: Any) -> dict[str, Any]:
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


def _json_records(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    started = False
    for number, line in enumerate(file, 1):
        text = line if started else line.removeprefix(b"\xef\xbb\xbf")
        if not text.strip():
            continue
        if not started and text.lstrip().startswith(b"["):
            yield from _array(path, b"".join((text, file.read())))
            return
        started = True
        yield number, text


def _array(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array, counted from 1; one at a time, since all at once take several times the file."""
    _check_bytes(str(path), data)
    try:
        text = data.decode()
        del data
        position = _past_space(text, text.index("[") + 1)
        number, at_end = 1, text.startswith("]", position)
        while not at_end:
            _, end = _DECODER.raw_decode(text, position)
            yield number, text[position:end].encode()
            position, at_end = _behind_item(text, end)
            number += 1
        if _past_space(text, position + 1) < len(text):
            raise json.JSONDecodeError("Extra data", text, position + 1)
    except ValueError as error:
        raise DataError(f"{path}: not one JSON array in UTF-8: {error}", hint=_ONE_A_LINE) from error
    except RecursionError as error:
        raise DataError(f"{path}: JSON that is nested too deeply to be read") from error


def _behind_item(text: str, end: int) -> tuple[int, bool]:
    """Where the next item or the closing bracket begins, and whether it is the bracket. Raises JSONDecodeError."""
    position = _past_space(text, end)
    if text.startswith("]", position):
        return position, True
    if not text.startswith(",", position):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
    return _past_space(text, position + 1), False


def _past_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None  # it matches nothing, too
    return found.end()


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
