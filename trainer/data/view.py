"""Documents as they are trained: text, which of it counts, where sequences cut it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trainer.data.token_file import TokenFile
from trainer.data.tokenize import ModelTokenizer

BOLD_GREEN, PLAIN = "\x1b[1;32m", "\x1b[0m"


@dataclass(frozen=True)
class Segment:
    """Tokens in a row of one sequence that all count, or that all do not. cut: a new sequence begins here."""

    text: str
    tokens: int
    counts: bool
    cut: bool


@dataclass(frozen=True, kw_only=True)
class DocumentView:
    """One document. sequences: the first and the last that hold it, from 0; note: what is to be said about it."""

    line: int
    tokens: int
    label_tokens: int
    sequences: tuple[int, int]
    note: str
    segments: tuple[Segment, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def views(
    tokens: TokenFile, tokenizer: ModelTokenizer, seq: int, labels: np.ndarray, show: int
) -> Iterator[DocumentView]:
    """The first `show` documents. labels: [sequences], of each the number of tokens that count."""
    bounds = [*tokens.starts[: show + 1].tolist(), len(tokens.ids)]
    for (begin, end), line in zip(pairwise(bounds), tokens.lines[:show].tolist(), strict=False):
        # Sequence k predicts the tokens from k * seq + 1 on, so the first token of all is in the first.
        first, last = max(begin - 1, 0) // seq, max(end - 2, 0) // seq
        counts = tokens.counts[begin:end]
        yield DocumentView(
            line=line,
            tokens=end - begin,
            label_tokens=int(counts.sum()),
            sequences=(first, last),
            note=_note(int(counts.sum()), labels[first : last + 1]),
            segments=tuple(_segments(tokens, tokenizer, seq, begin, end)),
        )


def _note(counted: int, labels: np.ndarray) -> str:
    if not counted:
        return "nothing of it counts"
    return "partly in sequences in which nothing counts, which are left out" if (labels == 0).any() else ""


def _segments(tokens: TokenFile, tokenizer: ModelTokenizer, seq: int, begin: int, end: int) -> Iterator[Segment]:
    position = np.arange(begin, end)
    # Each token is predicted in one sequence; the token before it is the last of what is looked at there.
    sequence, counts = np.maximum(position - 1, 0) // seq, tokens.counts[begin:end]
    changes = np.flatnonzero((np.diff(sequence) != 0) | (np.diff(counts.astype(np.int8)) != 0)) + 1
    bounds = [0, *changes.tolist(), end - begin]
    for one, other in pairwise(bounds):
        ids = tokens.ids[begin + one : begin + other].tolist()
        cut = one > 0 and bool(sequence[one] != sequence[one - 1])
        yield Segment(tokenizer.tokenizer.decode(ids, skip_special_tokens=False), len(ids), bool(counts[one]), cut)


def as_text(view: DocumentView, *, colour: bool) -> str:
    """For people: what counts in colour, or in double brackets."""
    first, last = view.sequences
    where = f"sequence {first}" if first == last else f"sequences {first}-{last}"
    head = f"-- line {view.line}: {view.tokens:,} tokens, {view.label_tokens:,} count, {where}"
    open_, close = (BOLD_GREEN, PLAIN) if colour else ("[[", "]]")
    text = "".join(
        (f"\n-- cut: sequence {_sequence(view, i)}\n" if segment.cut else "")
        + (f"{open_}{_shown(segment.text)}{close}" if segment.counts else _shown(segment.text))
        for i, segment in enumerate(view.segments)
    )
    return f"{head}{'; ' + view.note if view.note else ''}\n{text}"


def _sequence(view: DocumentView, i: int) -> int:
    return view.sequences[0] + sum(segment.cut for segment in view.segments[: i + 1])


def _shown(text: str) -> str:
    """Without what would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
