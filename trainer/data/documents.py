"""The documents of a data file: from a record, or a whole text, to the text that is tokenized and what counts in it.

What a record says is never dropped without a word: a field that nobody reads is an error that names it, unless it is
plainly about the record (`id`, `source`, ...) or the user says that it is to be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcache.errors import GraphcacheError
from trainer.data import conversation
from trainer.data.blocks import TextBlock
from trainer.data.conversation import Conversation
from trainer.data.errors import DataError
from trainer.data.faithful import check_written
from trainer.data.files import decode, raw_records
from trainer.data.turns import TurnFinder

# Fields that say something about a record and nothing of what is trained.
_ABOUT = frozenset(
    [
        "id",
        "idx",
        "index",
        "key",
        "uid",
        "uuid",
        "hash",
        "source",
        "sources",
        "origin",
        "dataset",
        "dataset_name",
        "subset",
        "split",
        "config",
        "category",
        "categories",
        "subcategory",
        "topic",
        "topics",
        "domain",
        "task",
        "tasks",
        "type",
        "kind",
        "difficulty",
        "level",
        "language",
        "lang",
        "locale",
        "license",
        "url",
        "link",
        "title",
        "date",
        "time",
        "timestamp",
        "created",
        "created_at",
        "updated_at",
        "model",
        "models",
        "generator",
        "author",
        "user",
        "score",
        "scores",
        "quality",
        "rating",
        "tags",
        "meta",
        "metadata",
        "info",
        "extra_info",
        "num_turns",
        "turns",
        "length",
        "num_tokens",
        "n_tokens",
        "token_count",
        "tokens",
        "word_count",
    ]
)
_ABOUT_ENDS = ("_id", "_score", "_count", "_url", "_date", "_hash")
_CHAT_FIELDS = frozenset({"tools", "documents", "chat_template_kwargs"})
_KINDS: dict[str, frozenset[str]] = {
    "text": frozenset(),
    "messages": _CHAT_FIELDS,
    "conversations": _CHAT_FIELDS | {"system"},
    "instruction": _CHAT_FIELDS | {"input", "output", "system"},
    "prompt": frozenset({"completion"}),
}
_FORMS = (
    "a record has text, or messages, or prompt and completion, or conversations (ShareGPT), or instruction and output"
    " (Alpaca)"
)
_SYSTEM = (
    'write it as the first message: {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...},'
    ' {"role": "assistant", ...}]}'
)


@dataclass(frozen=True)
class Document:
    """Text to be tokenized, or a block of a long one.

    line:     where it starts in the file, from 1: the number of the record, where records are not lines
    spans:    (begin, end) in characters, sorted: only tokens in them count in the loss; None: all do
    complete: the text holds its own special tokens already, as a chat template writes them
    begins:   this is the whole text, or its first block
    after:    the characters that the next block begins with; empty for the whole text and its last block
    """

    line: int
    text: str
    spans: tuple[tuple[int, int], ...] | None = None
    complete: bool = False
    begins: bool = True
    after: str = ""


class Reader:
    """Makes documents of records."""

    def __init__(self, finder: TurnFinder, ignored: Iterable[str] = ()) -> None:
        """ignored: names of fields that are not read and not missed."""
        self._finder = finder
        self._ignored = frozenset(ignored)

    def documents(self, path: Path) -> Iterator[Document]:
        """All documents, in the order of the file. Raises DataError."""
        for number, raw in raw_records(path):
            yield self.document(f"{path}:{number}", number, raw)

    def document(self, where: str, line: int, raw: Any) -> Document:
        """Of a record or a block of a text, as `raw_records` gives it. Raises DataError."""
        if isinstance(raw, TextBlock):
            return Document(line, raw.text, begins=raw.begins, after=raw.after)
        record = {name: value for name, value in decode(where, raw).items() if name not in self._ignored}
        kind = _kind(where, record)
        if kind == "text":
            return Document(line, _plain(where, _string(where, record, "text")))
        if kind == "prompt" and not isinstance(record["prompt"], list):
            prompt, completion = _string(where, record, "prompt"), _string(where, record, "completion")
            text = _plain(where, prompt + completion)
            return Document(line, text, ((len(prompt), len(text)),))
        text, spans = self._rendered(where, _FROM[kind](where, record, self._ignored, self._finder.template.source))
        return Document(line, _plain(where, text), spans, complete=True)

    def _rendered(self, where: str, found: Conversation) -> tuple[str, tuple[tuple[int, int], ...]]:
        for name in found.options:
            if not re.search(rf"\b{re.escape(name)}\b", self._finder.template.source):
                raise DataError(
                    f"{where}: the chat template reads no {name}, which chat_template_kwargs gives",
                    hint="--ignore-fields chat_template_kwargs leaves all of them out",
                )
        try:
            text, spans = self._finder.render(found)
            check_written(found, text, spans)
        except GraphcacheError as error:
            raise DataError(f"{where}: {error.message}", hint=error.hint) from error
        return text, spans


_FROM: dict[str, Callable[[str, Mapping[str, Any], frozenset[str], str], Conversation]] = {
    "messages": conversation.of_messages,
    "conversations": conversation.of_sharegpt,
    "instruction": conversation.of_alpaca,
    "prompt": conversation.of_pair,
}


def _kind(where: str, record: Mapping[str, Any]) -> str:
    """What the record is. Raises DataError for none, several, and for fields that are not read."""
    kinds = [kind for kind in _KINDS if record.get(kind) is not None]
    if len(kinds) != 1:
        ignore = f"; --ignore-fields {kinds[0]} leaves one out" if kinds else ""
        raise DataError(f"{where}: has {' and '.join(kinds) or 'none of ' + ', '.join(_KINDS)}", hint=_FORMS + ignore)
    (kind,) = kinds
    read = _KINDS[kind] | ({*_CHAT_FIELDS} if kind == "prompt" and isinstance(record["prompt"], list) else set())
    other = sorted(
        name
        for name, value in record.items()
        if name != kind and name not in read and value not in (None, "", [], {}) and not _is_about(name)
    )
    if "system" in other:
        raise DataError(f"{where}: has system beside {kind}", hint=_SYSTEM)
    if other:
        raise DataError(
            f"{where}: has {', '.join(other)} beside {kind}, which is not read",
            hint=f"take it out of the data, or ignore it: --ignore-fields {','.join(other)}",
        )
    return kind


def _is_about(name: str) -> bool:
    return name.lower() in _ABOUT or name.startswith("_") or name.lower().endswith(_ABOUT_ENDS)


def _string(where: str, record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        raise DataError(f"{where}: no {key}", hint="prompt and completion come together")
    value = record[key]
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is a {type(value).__name__}, not text")
    return value


def _plain(where: str, text: str) -> str:
    """JSON can hold half of a surrogate pair, which is no text that a tokenizer could read, and NULs."""
    if "\0" in text:
        raise DataError(f"{where}: character {text.index(chr(0))} of the text is NUL", hint="it is no text: convert it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: character {error.start} is half of a surrogate pair") from error
    return text
