"""One run against another: losses bit for bit, speed, and what differs in settings and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainer.report.runs import RecordedRun

# Settings that say where a run lies, not what it is.
PLACES = frozenset({"settings.out", "settings.resume"})
# What of environment.json is compared besides the graphs.
COMPARED = ("versions", "machine", "devices", "data")
# Of an artifact's SHA-256.
SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`other` against `base`, over the steps that both have.

    largest:     the largest absolute difference of their losses, and the step it is at; None for no common step
    speed_ratio: median step time of `base` over that of `other`: above 1, `other` is faster
    differences: settings and facts of the environment that differ, as (name, base's, other's)
    """

    base: str
    other: str
    common_steps: int
    equal_losses: bool
    largest: tuple[float, int] | None
    speed_ratio: float | None
    differences: tuple[tuple[str, str, str], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "other": self.other,
            "common_steps": self.common_steps,
            "losses_equal_bit_for_bit": self.equal_losses,
            "largest_loss_difference": None if self.largest is None else self.largest[0],
            "largest_at_step": None if self.largest is None else self.largest[1],
            "speed_ratio": self.speed_ratio,
            "differences": [{"name": name, "base": old, "other": new} for name, old, new in self.differences],
        }


def compare(base: RecordedRun, other: RecordedRun) -> Comparison:
    """How `other` differs from `base`."""
    ours, theirs = base.loss_at(), other.loss_at()
    common = sorted(ours.keys() & theirs.keys())
    gaps = [(abs(theirs[step] - ours[step]), step) for step in common]
    return Comparison(
        base=base.label,
        other=other.label,
        common_steps=len(common),
        equal_losses=bool(common) and all(ours[step] == theirs[step] for step in common),
        largest=max(gaps, key=lambda gap: (gap[0], -gap[1]), default=None),
        speed_ratio=_speed_ratio(base, other, set(common)),
        differences=tuple(_differences(base, other)),
    )


def _speed_ratio(base: RecordedRun, other: RecordedRun, common: set[int]) -> float | None:
    """None without a common step. The first one is left out where there are others: it loads what later ones find."""
    steps = sorted(common)[1:] or sorted(common)
    if not steps:
        return None
    kept = set(steps)
    ours, theirs = (_median_secs(run, kept) for run in (base, other))
    return ours / theirs


def _median_secs(run: RecordedRun, steps: set[int]) -> float:
    return median(float(record["step_secs"]) for record in run.steps if record["step"] in steps)


def _differences(base: RecordedRun, other: RecordedRun) -> Iterator[tuple[str, str, str]]:
    ours, theirs = _facts(base), _facts(other)
    for name in sorted(ours.keys() | theirs.keys()):
        old, new = ours.get(name, "-"), theirs.get(name, "-")
        if old != new and name not in PLACES:
            yield name, old, new


def _facts(run: RecordedRun) -> dict[str, str]:
    found = dict(_flat("settings", run.settings))
    for name in COMPARED:
        found.update(_flat(name, run.environment.get(name)))
    return {**found, **_artifacts(run)}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf under its path."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(f"{name}.{key}", below)
    else:
        yield name, "not given" if value is None else str(value)


def _artifacts(run: RecordedRun) -> dict[str, str]:
    """The artifacts of each graph's name, several where graphs of different shapes share it."""
    found: dict[str, list[str]] = {}
    for graph in run.environment.get("graphs", ()):
        found.setdefault(f"graphs.{graph['graph']}", []).append(str(graph["artifact"])[:SHOWN_DIGITS])
    return {name: " ".join(sorted(digests)) for name, digests in found.items()}
