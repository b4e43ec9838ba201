"""The documents of a data file: plain text, or JSONL with `text`, `messages` or `prompt` and `completion`.

Plain text is one document. In JSONL every line is one; blank lines are skipped, keys that are not named here are not
read. A file is JSONL by the end of its name, `.json` too: JSON is never trained on as plain text. Every error names the
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError
from trainer.data.chat import ChatTemplate

JSONL_SUFFIXES = (".json", ".jsonl", ".ndjson")
_ONE_A_LINE = f"each line of a {', '.join(JSONL_SUFFIXES)} file is one JSON object"


class DataError(GraphcacheError):
    """The data file, or a line of it, cannot be trained on."""

    name = "data"


@dataclass(frozen=True)
class Document:
    """Text to be tokenized.

    line:     where it starts in the file, from 1
    spans:    (begin, end) in characters, sorted: only tokens in them count in the loss; None: all do
    complete: the text holds its own special tokens already, as a chat template writes them
    """

    line: int
    text: str
    spans: tuple[tuple[int, int], ...] | None = None
    complete: bool = False


def read_documents(path: Path, template: ChatTemplate) -> Iterator[Document]:
    """All documents, in the order of the file. Raises DataError."""
    if path.suffix.lower() in JSONL_SUFFIXES:
        yield from _jsonl(path, template)
    else:
        yield _plain(path)


def _plain(path: Path) -> Document:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return Document(1, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8: {error.reason}") from error


def _jsonl(path: Path, template: ChatTemplate) -> Iterator[Document]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield _record(f"{path}:{number}", number, raw, template)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror}", hint="--data is a .jsonl file or a text file in UTF-8")


def _record(where: str, line: int, raw: bytes, template: ChatTemplate) -> Document:
    try:
        record = json.loads(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{where}: not JSON in UTF-8: {error}", hint=_ONE_A_LINE) from error
    except RecursionError as error:
        raise DataError(f"{where}: JSON that is nested too deeply to be read") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON {type(record).__name__}, not an object", hint=_ONE_A_LINE)
    kinds = [kind for kind in ("text", "messages", "prompt") if kind in record]
    if len(kinds) != 1:
        raise DataError(
            f"{where}: has {' and '.join(kinds) or 'none of text, messages, prompt'}",
            hint="a line has either text, or messages, or prompt and completion",
        )
    if kinds == ["text"]:
        return Document(line, _string(where, record, "text"))
    if kinds == ["messages"]:
        rendered, spans = _rendered(where, record["messages"], template)
        return Document(line, rendered, spans, complete=True)
    prompt, completion = _string(where, record, "prompt"), _string(where, record, "completion")
    return Document(line, prompt + completion, ((len(prompt), len(prompt) + len(completion)),))


def _string(where: str, record: dict[str, Any], key: str) -> str:
    if key not in record:
        raise DataError(f"{where}: no {key}", hint="prompt and completion come together")
    value = record[key]
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is a {type(value).__name__}, not text")
    return _encodable(where, value)


def _encodable(where: str, text: str) -> str:
    """JSON can hold half of a surrogate pair, which is no text that a tokenizer could read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: character {error.start} is half of a surrogate pair") from error
    return text


def _rendered(where: str, messages: Any, template: ChatTemplate) -> tuple[str, tuple[tuple[int, int], ...]]:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages is not a list of at least one message")
    messages = [_message(f"{where}: message {i}", message) for i, message in enumerate(messages)]
    try:
        text, spans = template.render(messages)
    except GraphcacheError as error:
        raise DataError(f"{where}: {error.message}", hint=error.hint) from error
    return _encodable(where, text), spans


def _message(where: str, message: Any) -> dict[str, Any]:
    """The message, with a content that a template can be given. Raises DataError."""
    calls = isinstance(message, dict) and bool(message.get("tool_calls"))
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not (calls or "content" in message):
        raise DataError(f"{where} is not an object with a role and a content")
    content = message.get("content")
    if calls and content is None:
        return {**message, "content": None}  # templates ask whether there are calls, and a content beside
    if not isinstance(content, str) and not _is_text_parts(content):
        raise DataError(
            f"{where} has a {type(content).__name__} for its content, not text",
            hint='content is text, or a list of {"type": "text", "text": "..."}',
        )
    return message


def _is_text_parts(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(_is_text_part(part) for part in content)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
