"""All tokens of a run, packed to sequences, and which sequences each step gets.

Documents are laid end to end in the order of the file and cut every `seq` tokens; each token is predicted once, from
the tokens before it in its sequence. The last sequence is padded, and padding never counts. Sequences without a single
token that counts teach nothing and are left out, so every step has something to average over.

Which sequences a step gets is a pure function of the seed and the step: resuming needs no state.
"""

from __future__ import annotations

import hashlib
import math
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.chat import TEMPLATE_DATE
from trainer.data.errors import DataError
from trainer.data.tokenize import ModelTokenizer, Tokens

IGNORED = -100  # the label of a token that does not count, as in `transformers`


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    tokens: [micro_batch, seq] int64; labels: [micro_batch, seq] int64, IGNORED where the next token does not count
    where:  the sequences and lines of the file that it came from, for people
    """

    tokens: Tensor
    labels: Tensor
    where: str

    @property
    def label_tokens(self) -> int:
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True)
class DataFacts:
    """What a run reports of its data.

    digest:                   SHA-256 of all tokens and which of them count
    documents:                that hold a token; empty_documents: that hold none and are left out
    tokens:                   of all documents; label_tokens: of these, what one pass predicts and counts
    sequences:                of one pass; sequences_without_labels: in which nothing counts, left out
    template_date:            the date that the chat template was told, where it asked
    never_stops:              whether the chat template writes no end of a turn
    """

    digest: str
    documents: int
    empty_documents: int
    tokens: int
    label_tokens: int
    sequences: int
    sequences_without_labels: int
    template_date: str | None = None
    never_stops: bool = False

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Corpus:
    """The packed data of one run."""

    def __init__(self, documents: Iterable[Tokens], seq: int) -> None:
        """Raises DataError when there is no token to learn from."""
        kept, empty = _split_empty(documents)
        self._seq = seq
        self._ids = _joined([d.ids for d in kept], np.int32)
        self._counts = _joined([d.counts for d in kept], bool)
        self._starts = np.cumsum([0] + [len(d.ids) for d in kept])[:-1]
        self._lines = [d.line for d in kept]
        self._ordered: tuple[tuple[int, int], np.ndarray] | None = None  # one pass's order, by seed and epoch
        labels = self._labels_per_sequence()
        # Positions of the sequences that teach something.
        self._sequences = np.flatnonzero(labels)
        if not len(self._sequences):
            raise DataError(
                f"no token counts in the loss: {len(kept)} documents, {empty} empty ones, {len(self._ids)} tokens",
                hint="a document needs two tokens; of a chat the assistant's count, of a prompt its completion",
            )
        self.facts = DataFacts(
            digest=_digest(self._ids, self._counts),
            documents=len(kept),
            empty_documents=empty,
            tokens=len(self._ids),
            label_tokens=int(labels.sum()),
            sequences=len(self._sequences),
            sequences_without_labels=int((labels == 0).sum()),
        )

    def _labels_per_sequence(self) -> np.ndarray:
        # Sequence k predicts the tokens k * seq + 1 to (k + 1) * seq.
        predicted = self._counts[1:]
        if not len(predicted):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(predicted, np.arange(0, len(predicted), self._seq), dtype=np.int64)

    def check_vocabulary(self, vocabulary: int) -> None:
        """That every token has a row in the embedding. Raises DataError."""
        largest = int(self._ids.max())
        if largest >= vocabulary:
            raise DataError(
                f"the tokenizer gives token {largest} and the model has {vocabulary} rows",
                hint="tokenizer.json and the weights are of different models",
            )

    def steps_per_epoch(self, sequences_per_step: int) -> int:
        return math.ceil(len(self._sequences) / sequences_per_step)

    def step(self, step: int, *, seed: int, micro_batch: int, accum: int) -> list[Batch]:
        """The micro-batches of a step (from 0): at most `accum`, fewer in the last step of a pass over the data."""
        size = micro_batch * accum
        epoch, position = divmod(step, self.steps_per_epoch(size))
        chosen = self._order(seed, epoch)[position * size : (position + 1) * size]
        return [self._batch(chosen[i : i + micro_batch], micro_batch) for i in range(0, len(chosen), micro_batch)]

    def _order(self, seed: int, epoch: int) -> np.ndarray:
        """The sequences of one pass: sorted by random numbers, whose raw stream numpy keeps from version to version."""
        if self._ordered is None or self._ordered[0] != (seed, epoch):
            keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(len(self._sequences))
            self._ordered = (seed, epoch), self._sequences[np.argsort(keys, kind="stable")]
        return self._ordered[1]

    def _batch(self, sequences: np.ndarray, micro_batch: int) -> Batch:
        tokens = np.zeros((micro_batch, self._seq), dtype=np.int64)
        labels = np.full((micro_batch, self._seq), IGNORED, dtype=np.int64)
        for row, sequence in enumerate(sequences):
            begin, end = sequence * self._seq, min((sequence + 1) * self._seq, len(self._ids) - 1)
            tokens[row, : end - begin] = self._ids[begin:end]
            following = self._ids[begin + 1 : end + 1]
            labels[row, : end - begin] = np.where(self._counts[begin + 1 : end + 1], following, IGNORED)
        where = "; ".join(self._where(int(sequence)) for sequence in sequences)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(labels), where)

    def _where(self, sequence: int) -> str:
        begin, end = sequence * self._seq, min((sequence + 1) * self._seq + 1, len(self._ids))
        first, last = np.searchsorted(self._starts, [begin, end - 1], side="right") - 1
        lines = f"line {self._lines[first]}" if first == last else f"lines {self._lines[first]}-{self._lines[last]}"
        return f"sequence {sequence} (tokens {begin}-{end - 1}, {lines})"


def _split_empty(documents: Iterable[Tokens]) -> tuple[list[Tokens], int]:
    kept, empty = [], 0
    for document in documents:
        if len(document.ids):
            kept.append(document)
        else:
            empty += 1
    return kept, empty


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _digest(ids: np.ndarray, counts: np.ndarray) -> str:
    """Of what is trained on, so that whatever made it differ shows: file, tokenizer, template, or this program."""
    digest = hashlib.sha256(ids.astype("<i4", copy=False).data)
    digest.update(counts.data)
    return digest.hexdigest()


def read_corpus(path: Path, seq: int, tokenizer: ModelTokenizer, ignored: Iterable[str] = ()) -> Corpus:
    """A data file, tokenized and packed. Raises DataError."""
    try:
        # Asked before it is opened, which alone would wait for the writer of a pipe; --resume reads it again.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file", hint="write what comes from a pipe to a file first")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", hint="--data names one file") from error
    corpus = Corpus(tokenizer.tokens(tokenizer.reader(ignored).documents(path)), seq)
    date = TEMPLATE_DATE.isoformat() if tokenizer.template.tells_date else None
    corpus.facts = replace(corpus.facts, template_date=date, never_stops=tokenizer.finder.never_stops)
    return corpus
