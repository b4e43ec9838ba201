"""What a proof costs, before it is run: by how much a graph multiplies and holds."""

from __future__ import annotations

from dataclasses import dataclass

# Sets of inputs; a graph whose sets cost little gets more.
SETS, CHEAP_SETS, CHEAP_SECS = 2, 4, 4.0
# What the vendor's host executor does in a second (single graphs, measured once), and each set's own overhead.
PRODUCTS_A_SEC, ELEMENTS_A_SEC, CALL_SECS = 27e6, 10e6, 0.05


@dataclass(frozen=True)
class Work:
    """products: pairs of numbers that one call multiplies in matrix products; elements: of its arguments."""

    products: int
    elements: int

    @property
    def call_secs(self) -> float:
        """Expected time of one set of inputs: the call, and its reference in float64."""
        return CALL_SECS + self.products / PRODUCTS_A_SEC + self.elements / ELEMENTS_A_SEC

    @property
    def sets(self) -> int:
        return CHEAP_SETS if CHEAP_SETS * self.call_secs <= CHEAP_SECS else SETS

    @property
    def secs(self) -> float:
        return self.sets * self.call_secs
