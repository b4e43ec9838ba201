"""All tokens of a run, packed to sequences, and which sequences each step gets.

Documents are laid end to end in the order of the file and cut every `seq` tokens; each token is predicted once, from
the tokens before it in its sequence. The last sequence is padded, and padding never counts. Sequences without a single
token that counts teach nothing and are left out, so every step has something to average over.

Which sequences a step gets is a pure function of the seed and the step: resuming needs no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data.errors import DataError
from trainer.data.token_file import TokenFile

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_TOKENS = 1 << 24
_BLOCK_DOCUMENTS = 1 << 16
IGNORED = -100  # the label of a token that does not count, as in `transformers`


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    tokens: [micro_batch, seq] int64; labels: [micro_batch, seq] int64, IGNORED where the next token does not count
    where:  the sequences and lines of the file that it came from, for people
    starts: of each sequence, the positions after 0 at which a document begins
    """

    tokens: Tensor
    labels: Tensor
    where: str
    starts: tuple[tuple[int, ...], ...] = ()

    @property
    def label_tokens(self) -> int:
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True, kw_only=True)
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
    """The packed data of one run. Tokens stay on disk: of each sequence only a number is kept."""

    def __init__(self, tokens: TokenFile, seq: int) -> None:
        """Raises DataError when there is no token to learn from."""
        facts = tokens.facts
        self._tokens, self._seq = tokens, seq
        self._ordered: tuple[tuple[int, int], np.ndarray] | None = None  # one pass's order, by seed and epoch
        labels = labels_per_sequence(tokens, seq)
        # Positions of the sequences that teach something.
        self._sequences = np.flatnonzero(labels)
        if not len(self._sequences):
            raise DataError(
                f"no token counts in the loss: {facts['documents']} documents, {facts['empty_documents']} empty ones,"
                f" {facts['tokens']} tokens",
                hint="a document needs two tokens; of a chat the assistant's count, of a prompt its completion",
            )
        self.facts = DataFacts(
            digest=facts["digest"],
            documents=facts["documents"],
            empty_documents=facts["empty_documents"],
            tokens=facts["tokens"],
            label_tokens=int(labels.sum()),
            sequences=len(self._sequences),
            sequences_without_labels=int((labels == 0).sum()),
            template_date=facts["template_date"],
            never_stops=facts["never_stops"],
        )

    def check_vocabulary(self, vocabulary: int) -> None:
        """Checks that every token has a row in the embedding. Raises DataError."""
        largest = self._tokens.facts["largest_id"]
        if largest >= vocabulary:
            raise DataError(
                f"the tokenizer gives token {largest} and the model has {vocabulary} rows",
                hint="tokenizer.json and the weights are of different models",
            )

    def without_labels(self) -> int:
        """How many documents hold no token that counts."""
        counts, starts = self._tokens.counts, self._tokens.starts
        found = 0
        for begin in range(0, len(starts), _BLOCK_DOCUMENTS):
            block = starts[begin : begin + _BLOCK_DOCUMENTS + 1]
            end = int(block[_BLOCK_DOCUMENTS]) if len(block) > _BLOCK_DOCUMENTS else len(counts)
            first = int(block[0])
            labels = np.logical_or.reduceat(counts[first:end], block[:_BLOCK_DOCUMENTS] - first)
            found += int((~labels).sum())
            self._tokens.give_back_pages()
        return found

    def steps_per_epoch(self, sequences_per_step: int) -> int:
        return math.ceil(len(self._sequences) / sequences_per_step)

    def step(self, step: int, *, seed: int, micro_batch: int, accum: int) -> list[Batch]:
        """The micro-batches of a step (from 0): at most `accum`, fewer in the last step of a pass over the data."""
        size = micro_batch * accum
        epoch, position = divmod(step, self.steps_per_epoch(size))
        chosen = self._order(seed, epoch)[position * size : (position + 1) * size]
        batches = [self._batch(chosen[i : i + micro_batch], micro_batch) for i in range(0, len(chosen), micro_batch)]
        self._tokens.give_back_pages()
        return batches

    def in_order(self, micro_batch: int) -> Iterator[Batch]:
        """Every sequence once, in the order of the file."""
        for begin in range(0, len(self._sequences), micro_batch):
            yield self._batch(self._sequences[begin : begin + micro_batch], micro_batch)
            self._tokens.give_back_pages()

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
            begin, end = sequence * self._seq, min((sequence + 1) * self._seq, len(self._tokens.ids) - 1)
            tokens[row, : end - begin] = self._tokens.ids[begin:end]
            following = self._tokens.ids[begin + 1 : end + 1]
            labels[row, : end - begin] = np.where(self._tokens.counts[begin + 1 : end + 1], following, IGNORED)
        where = "; ".join(self._where(int(sequence)) for sequence in sequences)
        import torch

        starts = tuple(self._starts(int(sequence)) for sequence in sequences)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(labels), where, starts)

    def _starts(self, sequence: int) -> tuple[int, ...]:
        begin = sequence * self._seq
        first, last = np.searchsorted(self._tokens.starts, [begin + 1, begin + self._seq])
        return tuple(int(start) - begin for start in self._tokens.starts[first:last])

    def _where(self, sequence: int) -> str:
        begin, end = sequence * self._seq, min((sequence + 1) * self._seq + 1, len(self._tokens.ids))
        first, last = np.searchsorted(self._tokens.starts, [begin, end - 1], side="right") - 1
        one, other = self._tokens.lines[first], self._tokens.lines[last]
        lines = f"line {one}" if first == last else f"lines {one}-{other}"
        return f"sequence {sequence} (tokens {begin}-{end - 1}, {lines})"


def labels_per_sequence(tokens: TokenFile, seq: int) -> np.ndarray:
    """How many tokens each sequence predicts that count, [sequences] int64: sequence k those from k * seq + 1 on."""
    found, predicted = [], max(len(tokens.counts) - 1, 0)
    step = seq * max(1, _BLOCK_TOKENS // seq)
    for begin in range(0, predicted, step):
        block = tokens.counts[1 + begin : 1 + min(begin + step, predicted)]
        found.append(np.add.reduceat(block, np.arange(0, len(block), seq), dtype=np.int64))
        tokens.give_back_pages()
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
