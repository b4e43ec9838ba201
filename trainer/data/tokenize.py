"""The checkpoint's own tokenizer, as transformers loads it, and from a document its tokens and which of them count.

Text that is not complete gets the special tokens that the tokenizer adds by itself (Llama's begin-of-text; one, where
the text has its own) and the end-of-text token, which counts, whoever adds it. The first token of a document never
counts: nothing before it says what it should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from trainer.data.chat import ChatTemplate
from trainer.data.documents import Document, Reader
from trainer.data.errors import DataError
from trainer.data.tokens import Tokens
from trainer.data.turns import TurnFinder

# A long text is tokenized in blocks of about this many characters, each ending at a line's end: the library keeps some
# hundred bytes a token while it works, and works on blocks in parallel.
BLOCK_CHARS = 1 << 20
BATCH_DOCUMENTS = 1024
BLOCKS_AT_ONCE = 16


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
    def _added(self) -> tuple[int, int]:
        """How many tokens the tokenizer puts before a text by itself, and behind it."""
        mask = self.tokenizer.encode("a").special_tokens_mask
        return sum(1 for _ in takewhile(bool, mask)), sum(1 for _ in takewhile(bool, reversed(mask)))

    def _split(self, encoding: Encoding, *, complete: bool) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, int32: up to the end of the text, and those that the tokenizer puts behind it by itself."""
        ids = np.asarray(encoding.ids, dtype=np.int32)
        own = len(ids) - (0 if complete else self._added[1])
        return ids[:own], ids[own:]

    def _begins_twice(self, ids: np.ndarray, *, complete: bool) -> bool:
        """Whether the tokenizer has put a token before the text with which the text begins by itself."""
        return not complete and self._added[0] == 1 and len(ids) > 1 and bool(ids[0] == ids[1])

    def reader(self, ignored: Iterable[str] = ()) -> Reader:
        """What makes documents of records, for this template."""
        return Reader(self.finder, ignored)

    def tokens(self, documents: Iterable[Document]) -> Iterator[Tokens]:
        """The documents' tokens, in order. Raises DataError when a text needs an end-of-text token and has none."""
        for complete, run in groupby(documents, key=attrgetter("complete")):
            for batch in _batches(run):
                if _is_long(batch[0]):
                    yield self._long(batch[0])
                    continue
                encodings = self.tokenizer.encode_batch([d.text for d in batch], add_special_tokens=not complete)
                for document, encoding in zip(batch, encodings, strict=True):
                    ids, behind = self._split(encoding, complete=complete)
                    counts = _counts(encoding, len(ids), document.spans)
                    if self._begins_twice(ids, complete=complete):
                        ids, counts = ids[1:], counts[1:]
                    yield self._finished(document, ids, counts, behind)

    def _long(self, document: Document) -> Tokens:
        """A long text, block by block; only the first block gets the special tokens, and the end has those behind."""
        blocks = list(_blocks(document.text))
        encoding = self.tokenizer.encode(blocks[0], add_special_tokens=not document.complete)
        first, behind = self._split(encoding, complete=document.complete)
        parts = [first[1:] if self._begins_twice(first, complete=document.complete) else first]
        for begin in range(1, len(blocks), BLOCKS_AT_ONCE):
            encodings = self.tokenizer.encode_batch(blocks[begin : begin + BLOCKS_AT_ONCE], add_special_tokens=False)
            parts.extend(np.asarray(e.ids, dtype=np.int32) for e in encodings)
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
