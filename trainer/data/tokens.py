"""A document's tokens, or those of one of its blocks; and many of them end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """ids [n] int32, counts [n] bool (that the loss counts the prediction of this token), of the document at `line`.

    begins: a document begins here; else these go on with the one before
    """

    line: int
    ids: np.ndarray
    counts: np.ndarray
    begins: bool = True


@dataclass(frozen=True, kw_only=True)
class TokenRun:
    """Of documents and blocks in a row: ids [n] int32, counts [n] bool; lengths, lines [parts] int64, begins [parts]
    bool, as in `Tokens`."""

    ids: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray
    lines: np.ndarray
    begins: np.ndarray


def joined(parts: Sequence[Tokens]) -> TokenRun:
    """At least one part."""
    return TokenRun(
        ids=np.concatenate([part.ids for part in parts]),
        counts=np.concatenate([part.counts for part in parts]),
        lengths=np.asarray([len(part.ids) for part in parts], dtype=np.int64),
        lines=np.asarray([part.line for part in parts], dtype=np.int64),
        begins=np.asarray([part.begins for part in parts], dtype=bool),
    )
