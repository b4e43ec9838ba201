"""The numbers of a step's record under flat names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of every number in a step's record: `loss`, `phase_secs/forward`, `device_bytes/cpu:0`."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", float(below)) for key, below in value.items())
        elif isinstance(value, int | float) and name != "step":
            yield name, float(value)
