"""A document's tokens, or those of one of its blocks."""

from __future__ import annotations

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
