"""One document's tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """ids [n] int32, counts [n] bool (that the loss counts the prediction of this token), of the document at `line`."""

    line: int
    ids: np.ndarray
    counts: np.ndarray
