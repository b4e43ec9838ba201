"""Lines for people on stderr, and the data's."""

from __future__ import annotations

import sys
from contextlib import suppress

from trainer.data.corpus import DataFacts

NEVER_STOPS = "the chat template writes no token that ends a turn: the model will not learn to stop"


def say(line: str) -> None:
    """On stderr; what cannot be written there (a full disk, a reader that has gone) is lost, and nothing ends."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def data_lines(facts: DataFacts, seq: int) -> list[str]:
    """A run's data, for people."""
    return [
        f"data     {facts.tokens:,} tokens in {facts.documents:,} documents, {facts.label_tokens:,} of them count;"
        f" {facts.empty_documents:,} empty documents left out",
        f"data     {facts.sequences:,} sequences of {seq:,} tokens;"
        f" {facts.sequences_without_labels:,} in which nothing counts left out",
        *([f"data     the chat template is told that today is {facts.template_date}"] if facts.template_date else []),
        *([f"warning  {NEVER_STOPS}"] if facts.never_stops else []),
    ]


def held_out_lines(facts: DataFacts, trained: DataFacts, seq: int) -> list[str]:
    """The held-out data, for people."""
    same = "warning  --eval-data has the tokens of --data: its loss says nothing about other text"
    return [
        f"eval     {facts.sequences:,} sequences of {seq:,} tokens, {facts.label_tokens:,} tokens count",
        *([same] if facts.digest == trained.digest else []),
    ]
