"""The checkpoint's own tokenizer, as transformers loads it, and from a document its tokens and which of them count.

Text that is not complete gets the special tokens that the tokenizer adds by itself (Llama's begin-of-text; one, where
the text has its own) and the end-of-text token, which counts, whoever adds it. The first token of a document never
counts: nothing before it says what it should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from trainer.data.blocks import BEFORE, blocks, first_token
from trainer.data.chat import ChatTemplate
from trainer.data.documents import Document, Reader
from trainer.data.errors import DataError
from trainer.data.tokens import Tokens
from trainer.data.turns import TurnFinder

# What the library is given at once.
BATCH_DOCUMENTS = 1024
BATCH_CHARS = 16 << 20


@dataclass(frozen=True)
class ModelTokenizer:
    """How a checkpoint turns text into tokens.

    end_of_text: the token's id, None when the checkpoint names none: then only conversations can be tokenized
    """

    tokenizer: Tokenizer
    finder: TurnFinder
    end_of_text: int | None

    @property
    def template(self) -> ChatTemplate:
        return self.finder.template

    @cached_property
    def _added(self) -> tuple[int, np.ndarray]:
        """How many tokens the tokenizer puts before a text by itself, and which, int32, behind it."""
        encoding = self.tokenizer.encode("a")
        mask = encoding.special_tokens_mask
        behind = sum(1 for _ in takewhile(bool, reversed(mask)))
        ids = np.asarray(encoding.ids, dtype=np.int32)
        return sum(1 for _ in takewhile(bool, mask)), ids[len(ids) - behind :]

    def _begins_twice(self, ids: np.ndarray, document: Document) -> bool:
        """Whether the tokenizer has put a token before the text with which the text begins by itself."""
        added = self._added[0] if document.begins and not document.complete else 0
        return added == 1 and len(ids) > 1 and bool(ids[0] == ids[1])

    def reader(self, ignored: Iterable[str] = ()) -> Reader:
        """What makes documents of records, for this template."""
        return Reader(self.finder, ignored)

    def tokens(self, documents: Iterable[Document]) -> Iterator[Tokens]:
        """The documents' tokens, in order; those of a long text in blocks.

        Raises DataError when a text needs an end-of-text token and has none.
        """
        parts = chain.from_iterable(_parts(document) for document in documents)
        for whole, run in groupby(parts, key=lambda part: part.complete or not part.begins):
            for batch in _batches(run):
                texts = [document.text if document.begins else BEFORE + document.text for document in batch]
                texts = [text + document.after for text, document in zip(texts, batch, strict=True)]
                encodings = self.tokenizer.encode_batch(texts, add_special_tokens=not whole)
                yield from map(self._tokens, batch, encodings)

    def _tokens(self, document: Document, encoding: Encoding) -> Tokens:
        """From what the library made of the document and what stands beside it."""
        ids = np.asarray(encoding.ids, dtype=np.int32)
        if document.after:
            ids = ids[: first_token(encoding, len(document.text) + (0 if document.begins else len(BEFORE)))]
        elif document.begins and not document.complete:
            ids = ids[: len(ids) - len(self._added[1])]
        if not document.begins:
            ids = ids[first_token(encoding, len(BEFORE)) :]
        counts = _counts(encoding, len(ids), document.spans)
        if self._begins_twice(ids, document):
            ids, counts = ids[1:], counts[1:]
        return self._finished(document, ids, counts)

    def _finished(self, document: Document, ids: np.ndarray, counts: np.ndarray) -> Tokens:
        """ids, counts: [n], of the text and what stands before it."""
        if not document.text:
            ids, counts = ids[:0], counts[:0]
        elif not (document.after or document.complete or (len(ids) and ids[-1] == self.end_of_text and counts[-1])):
            # These count whatever the spans say: a model that is not taught them never learns to stop.
            ending = self._ending()
            ids, counts = np.append(ids, ending), np.append(counts, np.ones(len(ending), dtype=bool))
        if document.begins:
            counts[:1] = False
        return Tokens(document.line, ids, counts, document.begins)

    def _ending(self) -> np.ndarray:
        """What follows a text: what tokenizer.json adds by itself, and the end-of-text token, once."""
        if self.end_of_text is None:
            raise DataError(
                "the checkpoint names no end-of-text token, and text without it does not teach a model to stop",
                hint="give eos_token in tokenizer_config.json, or eos_token_id in config.json",
            )
        behind = self._added[1]
        return behind if behind[-1:].tolist() == [self.end_of_text] else np.append(behind, np.int32(self.end_of_text))


def _counts(encoding: Encoding, size: int, spans: tuple[tuple[int, int], ...] | None) -> np.ndarray:
    """Which of the first `size` tokens count: those that share a character with a span, as in transformers' masks.

    Only the tokens at the ends of a span are asked for: the list of all offsets takes longer to make than the tokens.
    """
    if spans is None:
        return np.ones(size, dtype=bool)
    counts = np.zeros(size, dtype=bool)
    for begin, end in spans:
        if end <= begin:
            continue
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
        if first is None or last is None:  # a character that is in no token: white space, perhaps
            return _counts_by_offsets(encoding, spans)[:size]
        # Several tokens may make one character.
        while last + 1 < size and (chars := encoding.token_to_chars(last + 1)) and chars[0] < end:
            last += 1
        counts[first : last + 1] = True
    return counts


def _counts_by_offsets(encoding: Encoding, spans: tuple[tuple[int, int], ...]) -> np.ndarray:
    begins, ends = np.asarray(spans, dtype=np.int64).T
    first, last = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    span = np.searchsorted(ends, first, side="right")  # the first span that ends after the token begins
    inside: np.ndarray = (span < len(ends)) & (last > begins[np.minimum(span, len(begins) - 1)])
    return inside


def _parts(document: Document) -> Iterator[Document]:
    """A long text in blocks. One of which only a part counts stays whole."""
    if document.spans is not None or document.after or not document.begins:
        yield document
        return
    for block in blocks(document.text):
        yield (
            replace(document, text=block.text, begins=block.begins, after=block.after)
            if block.after or not block.begins
            else document
        )


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    chars = 0
    for document in documents:
        batch.append(document)
        chars += len(document.text)
        if len(batch) == BATCH_DOCUMENTS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def read_tokenizer(model: Path) -> ModelTokenizer:
    """The tokenizer of a checkpoint folder.

    Raises DataError when it is missing, cannot be read, or does not have the checkpoint's end-of-text token.
    """
    named = _named_tokens(model)
    loaded = _loaded(model)
    tokenizer: Tokenizer = loaded.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = loaded.split_special_tokens
    end = _end_token(model, tokenizer, named)
    special = {**loaded.special_tokens_map, **({} if end is None else {"eos_token": end})}
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    finder = TurnFinder(ChatTemplate(loaded.chat_template, special), added)
    return ModelTokenizer(tokenizer, finder, None if end is None else tokenizer.token_to_id(end))


def _loaded(model: Path) -> Any:
    """transformers' tokenizer. It never asks a hub, and runs no code that lies in the folder."""
    path = model / "tokenizer.json"
    if not path.exists():
        raise DataError(f"{path} is missing", hint="the checkpoint's own tokenizer.json is needed")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        if not isinstance(loaded.backend_tokenizer, Tokenizer):
            raise TypeError(f"{type(loaded).__name__} is not made of it")
    except Exception as error:  # of the library's many, from its Rust half too
        raise DataError(f"{path} cannot be read as a tokenizer: {type(error).__name__}: {error}") from error
    return loaded


def _named_tokens(model: Path) -> str | None:
    """The end-of-text token that tokenizer_config.json names, if it is a token of the checkpoint.

    transformers would add a token that is none to the vocabulary, in silence. Raises DataError.
    """
    settings = _json(model / "tokenizer_config.json")
    named = _token_text(settings.get("eos_token"))
    if named is None:
        return None
    whole = _json(model / "tokenizer.json")
    in_config = (settings.get("added_tokens_decoder") or {}).values()
    added = [_token_text(token) for token in (*(whole.get("added_tokens") or ()), *in_config)]
    vocabulary = (whole.get("model") or {}).get("vocab") or ()
    in_vocabulary = named in vocabulary or any(isinstance(v, list) and v and v[0] == named for v in vocabulary)
    if named not in added and not in_vocabulary:
        raise DataError(
            f"eos_token is {named!r} in tokenizer_config.json, which tokenizer.json does not have",
            hint="the files are of different models: name a token that tokenizer.json has",
        )
    return named


def _token_text(value: Any) -> str | None:
    """A special token is written as text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _end_token(model: Path, tokenizer: Tokenizer, named: str | None) -> str | None:
    """The end-of-text token: as tokenizer_config.json names it, else the one that generation stops at, if any."""
    if named is not None:
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
