"""The checkpoint's own tokenizer (`tokenizer.json`), and from a document its tokens and which of them count.

Text that is not complete gets the special tokens that tokenizer.json adds by itself (Llama's begin-of-text) and the
end-of-text token, which counts, whoever adds it. The first token of a document never counts: nothing before it says
what it should be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

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
    """How a checkpoint turns text into tokens.

    end_of_text: the token's id, None when the checkpoint names none: then only conversations can be tokenized
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    end_of_text: int | None

    def tokens(self, documents: Iterable[Document]) -> Iterator[Tokens]:
        """The documents' tokens, in order. Raises DataError when a text needs an end-of-text token and has none."""
        for complete, run in groupby(documents, key=attrgetter("complete")):
            for batch in _batches(run):
                if _is_long(batch[0]):
                    yield self._long(batch[0])
                    continue
                encodings = self.tokenizer.encode_batch([d.text for d in batch], add_special_tokens=not complete)
                for document, encoding in zip(batch, encodings, strict=True):
                    ids, behind = _split(encoding)
                    yield self._finished(document, ids, _counts(encoding, document.spans)[: len(ids)], behind)

    def _long(self, document: Document) -> Tokens:
        """A long text, block by block; only the first block gets the special tokens, and the end has those behind."""
        blocks = list(_blocks(document.text))
        first, behind = _split(self.tokenizer.encode(blocks[0], add_special_tokens=not document.complete))
        parts = [first]
        for begin in range(1, len(blocks), BATCH_DOCUMENTS):
            encodings = self.tokenizer.encode_batch(blocks[begin : begin + BATCH_DOCUMENTS], add_special_tokens=False)
            parts.extend(_split(e)[0] for e in encodings)
        ids = np.concatenate(parts)
        return self._finished(document, ids, np.ones(len(ids), dtype=bool), behind)

    def _finished(self, document: Document, ids: np.ndarray, counts: np.ndarray, behind: np.ndarray) -> Tokens:
        """ids, counts: [n], of the text and what stands before it; behind: ids that tokenizer.json puts after it."""
        if not document.text:
            ids, counts = ids[:0], counts[:0]
        elif not document.complete and not (len(ids) and ids[-1] == self.end_of_text and counts[-1]):
            # These count whatever the spans say: a model that is not taught them never learns to stop.
            ending = self._ending(behind)
            ids, counts = np.append(ids, ending), np.append(counts, np.ones(len(ending), dtype=bool))
        counts[:1] = False
        return Tokens(document.line, ids, counts)

    def _ending(self, behind: np.ndarray) -> np.ndarray:
        """What follows a text: what tokenizer.json adds by itself, and the end-of-text token, once."""
        if self.end_of_text is None:
            raise DataError(
                "the checkpoint names no end-of-text token, and text without it does not teach a model to stop",
                hint="give eos_token in tokenizer_config.json, or eos_token_id in config.json",
            )
        return behind if behind[-1:].tolist() == [self.end_of_text] else np.append(behind, np.int32(self.end_of_text))


def _split(encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, int32: up to the end of the text, and those that tokenizer.json puts behind it by itself.

    The library's mask is of what its post-processor added: a special token that the text spells out is not in it.
    """
    ids = np.asarray(encoding.ids, dtype=np.int32)
    own = len(ids) - sum(1 for _ in takewhile(bool, reversed(encoding.special_tokens_mask)))
    return ids[:own], ids[own:]


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
    """The tokenizer of a checkpoint folder.

    Raises DataError when it is missing, cannot be read, or does not have the checkpoint's end-of-text token.
    """
    path = model / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing", hint="the checkpoint's own tokenizer.json is needed") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _json(model / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _token_text(settings.get(name))) is not None}
    end = _end_token(model, tokenizer, special.get("eos_token"))
    if end is not None:
        special["eos_token"] = end
    source = read_template(model, settings)
    end_id = None if end is None else tokenizer.token_to_id(end)
    return ModelTokenizer(tokenizer, ChatTemplate(source, special), end_id)


_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def _token_text(value: Any) -> str | None:
    """A special token is written as text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _end_token(model: Path, tokenizer: Tokenizer, named: str | None) -> str | None:
    """The end-of-text token: as tokenizer_config.json names it, else the one that generation stops at, if any."""
    if named is not None:
        if tokenizer.token_to_id(named) is None:
            raise DataError(
                f"eos_token is {named!r} in tokenizer_config.json, which tokenizer.json does not have",
                hint="the files are of different models: name a token that tokenizer.json has",
            )
        return named
    for file in ("generation_config.json", "config.json"):
        value = _json(model / file).get("eos_token_id")
        if isinstance(value, list):  # several stop generation: the first ends a text, others a turn
            value = next(iter(value), None)
        if value is None:
            continue
        token = tokenizer.id_to_token(value) if type(value) is int and 0 <= value < 1 << 31 else None
        if token is None:
            raise DataError(
                f"eos_token_id is {value!r} in {file}, which is no token of tokenizer.json",
                hint="give eos_token in tokenizer_config.json",
            )
        return token
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object")
    return value
