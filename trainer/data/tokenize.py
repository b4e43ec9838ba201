"""The checkpoint's own tokenizer (`tokenizer.json`), and from a document its tokens and which of them count.

Text that is not complete gets the special tokens that tokenizer.json adds by itself (Llama's begin-of-text) and the
end-of-text token, which counts. The first token of a document never counts: nothing before it says what it should be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from graphcache.digest import json_sha256, sha256_hex
from trainer.data.chat import ChatTemplate, read_template
from trainer.data.documents import DataError, Document

# A long text is tokenized in blocks of about this many characters, each ending at a line's end: the library keeps some
# hundred bytes a token while it works, and works on blocks in parallel.
BLOCK_CHARS = 1 << 20
BATCH_DOCUMENTS = 256


@dataclass(frozen=True)
class Tokens:
    """One document's tokens: ids [n] int32, counts [n] bool (that the loss counts the prediction of this token)."""

    line: int
    ids: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class ModelTokenizer:
    """`digest` identifies everything that turns text into tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    end_of_text: int | None
    digest: str

    def tokens(self, documents: Iterable[Document]) -> Iterator[Tokens]:
        """The documents' tokens, in order."""
        for complete, run in groupby(documents, key=attrgetter("complete")):
            for batch in _batches(run):
                if _is_long(batch[0]):
                    yield self._long(batch[0])
                    continue
                encodings = self.tokenizer.encode_batch([d.text for d in batch], add_special_tokens=not complete)
                for document, encoding in zip(batch, encodings, strict=True):
                    yield self._finished(document, _ids(encoding), _counts(encoding, document.spans))

    def _long(self, document: Document) -> Tokens:
        """A long text, block by block; only the first block gets the special tokens."""
        blocks = list(_blocks(document.text))
        parts = [_ids(self.tokenizer.encode(blocks[0], add_special_tokens=not document.complete))]
        for begin in range(1, len(blocks), BATCH_DOCUMENTS):
            encodings = self.tokenizer.encode_batch(blocks[begin : begin + BATCH_DOCUMENTS], add_special_tokens=False)
            parts.extend(_ids(e) for e in encodings)
        ids = np.concatenate(parts)
        return self._finished(document, ids, np.ones(len(ids), dtype=bool))

    def _finished(self, document: Document, ids: np.ndarray, counts: np.ndarray) -> Tokens:
        end = self.end_of_text
        if not document.complete and document.text and end is not None and ids[-1:] != [end]:
            ids, counts = np.append(ids, np.int32(end)), np.append(counts, True)
        counts[:1] = False
        return Tokens(document.line, ids, counts)


def _ids(encoding: Encoding) -> np.ndarray:
    return np.asarray(encoding.ids, dtype=np.int32)


def _counts(encoding: Encoding, spans: tuple[tuple[int, int], ...] | None) -> np.ndarray:
    """Which tokens count: those that end inside a span (a token that straddles its beginning is part of the answer)."""
    if spans is None:
        return np.ones(len(encoding.ids), dtype=bool)
    if not spans:
        return np.zeros(len(encoding.ids), dtype=bool)
    begins, ends = np.asarray(spans, dtype=np.int64).T
    last = np.asarray([end for _, end in encoding.offsets], dtype=np.int64).reshape(-1)
    span = np.searchsorted(begins, last, side="left") - 1  # the last span that begins before the token ends
    inside: np.ndarray = (span >= 0) & (last <= ends[span])
    return inside


def _is_long(document: Document) -> bool:
    return len(document.text) > BLOCK_CHARS and document.spans is None


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Batches for the library, a long text alone."""
    batch: list[Document] = []
    for document in documents:
        if batch and (_is_long(document) or len(batch) == BATCH_DOCUMENTS):
            yield batch
            batch = []
        batch.append(document)
        if _is_long(document):
            yield batch
            batch = []
    if batch:
        yield batch


def _blocks(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        end = len(text) if begin + BLOCK_CHARS >= len(text) else text.find("\n", begin + BLOCK_CHARS) + 1 or len(text)
        yield text[begin:end]
        begin = end


def read_tokenizer(model: Path) -> ModelTokenizer:
    """The tokenizer of a checkpoint folder. Raises DataError when it is missing or cannot be read."""
    path = model / "tokenizer.json"
    try:
        data = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(data)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing", hint="the checkpoint's own tokenizer.json is needed") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _json(model / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _token_text(settings.get(name))) is not None}
    source = read_template(model, settings)
    end = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    digest = json_sha256({"tokenizer": sha256_hex(data), "template": source, "special": special})
    return ModelTokenizer(tokenizer, ChatTemplate(source, special), end, digest)


_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def _token_text(value: Any) -> str | None:
    """A special token is written as text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object")
    return value
