"""What `python -m trainer data` finds: the data as a run of these settings would train on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.corpus import Corpus, DataFacts, labels_per_sequence
from trainer.data.kept_tokens import tokens_of
from trainer.data.tokenize import read_tokenizer
from trainer.data.view import DocumentView, views


@dataclass(frozen=True)
class Look:
    """facts: of all the data; shown: its first documents; empty_lines: of documents that hold nothing, the first ones;
    without_labels: documents in which nothing counts."""

    facts: DataFacts
    shown: tuple[DocumentView, ...]
    empty_lines: tuple[int, ...]
    without_labels: int

    def as_json(self) -> dict[str, Any]:
        return {
            "data": self.facts.as_json(),
            "documents": [view.as_json() for view in self.shown],
            "empty_lines": list(self.empty_lines),
            "documents_without_labels": self.without_labels,
        }


def look(
    data: Path,
    model: Path,
    *,
    seq: int,
    show: int,
    ignored: tuple[str, ...],
    cache: str | None,
    say: Callable[[str], None],
) -> Look:
    """Raises DataError. model: the checkpoint's folder; show: how many documents."""
    tokenizer = read_tokenizer(model)
    tokens = tokens_of(data, model, ignored, cache, say)
    corpus = Corpus(tokens, seq)
    shown = views(tokens, tokenizer, seq, labels_per_sequence(tokens, seq), show)
    return Look(corpus.facts, tuple(shown), tuple(tokens.facts["empty_lines"]), corpus.without_labels())
