"""The ways to lay out a run, each with its memory plan and its played step, and the one to take. No torch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.architecture.config import ModelConfig
from trainer.config import RunConfig
from trainer.plan.costs import StepCosts
from trainer.plan.timeline import Timeline, play
from trainer.step.choose import choose_step
from trainer.step.memory import MemoryPlan
from trainer.step.schedule import Step

# A difference in step time that is not worth more resident layers.
SAME = 1.01


@dataclass(frozen=True)
class Limits:
    """Bytes of a device's pool and of the host; None where nothing bounds them."""

    pool_bytes: int | None
    host_bytes: int | None


@dataclass(frozen=True)
class Fault:
    """Something that would hold more than it has room for: `device 0`, `the host`."""

    what: str
    needs_bytes: int
    has_bytes: int

    @property
    def short(self) -> str:
        return f"no: {self.what} has {self.has_bytes / 1e9:.1f}"

    def __str__(self) -> str:
        return f"{self.what} would hold {self.needs_bytes:,} of {self.has_bytes:,} bytes"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A number of devices and of resident layers on each.

    faults: why it does not fit; empty when it does
    """

    devices: int
    resident_layers: int
    memory: MemoryPlan
    costs: StepCosts
    timeline: Timeline
    tokens: int
    faults: tuple[Fault, ...]

    @property
    def tokens_per_sec(self) -> float:
        return self.tokens / self.timeline.step_secs

    @property
    def fullest_device_bytes(self) -> int:
        return max(device.total_bytes for device in self.memory.devices)

    @property
    def limit(self) -> str:
        """What takes the time: `host updates` when more than a tenth of the step waits for them, a device that has no
        idle tenth, or `waiting between devices`."""
        step = self.timeline.step_secs
        if self.timeline.update_wait_secs > step / 10:
            return "host updates"
        busiest = max(sum(kinds.values()) for kinds in self.timeline.device_secs.values())
        return "device" if busiest > 0.9 * (step - self.timeline.update_wait_secs) else "waiting between devices"

    def device_secs(self) -> Mapping[str, float]:
        """Seconds by kind, over all devices."""
        found: dict[str, float] = defaultdict(float)
        for kinds in self.timeline.device_secs.values():
            for kind, secs in kinds.items():
                found[kind] += secs
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "costs": self.costs.as_json(),
            "devices": self.devices,
            "resident_layers": self.resident_layers,
            "memory": self.memory.as_json(),
            "timeline": self.timeline.as_json(),
            "tokens_per_sec": self.tokens_per_sec,
            "limit": self.limit,
            "faults": [str(fault) for fault in self.faults],
        }


def candidates(
    model: ModelConfig,
    config: RunConfig,
    devices: Sequence[int],
    costs_of: Callable[[Step], StepCosts],
    limits: Limits,
    *,
    program_bytes: int = 0,
    workers: int = 1,
) -> list[Candidate]:
    """For each number of devices, resident layers from none to the first number that does not fit: more take more.

    costs_of: of a step, whose passes are all alike
    """
    found = []
    for count in devices:
        for resident in range(model.layers // count + 1):
            step, memory = choose_step(
                model,
                replace(config, resident_layers=resident),
                count,
                micro_batches=config.accum,
                pool_bytes=limits.pool_bytes,
                program_bytes=program_bytes,
                workers=workers,
            )
            tokens = config.accum * config.micro_batch * config.seq
            faults = tuple(_faults(memory, limits))
            costs = costs_of(step)
            found.append(
                Candidate(
                    devices=count,
                    resident_layers=resident,
                    memory=memory,
                    costs=costs,
                    timeline=play(step, costs),
                    tokens=tokens,
                    faults=faults,
                )
            )
            if any(device.total_bytes > (limits.pool_bytes or math.inf) for device in memory.devices):
                break
    return found


def _faults(memory: MemoryPlan, limits: Limits) -> Iterator[Fault]:
    """The fullest device, and the host, where they are too small."""
    fullest = max(memory.devices, key=lambda device: device.total_bytes)
    if limits.pool_bytes is not None and fullest.total_bytes > limits.pool_bytes:
        yield Fault(f"device {fullest.device}", fullest.total_bytes, limits.pool_bytes)
    if limits.host_bytes is not None and memory.host_bytes > limits.host_bytes:
        yield Fault("the host", memory.host_bytes, limits.host_bytes)


def recommended(found: Sequence[Candidate]) -> Candidate | None:
    """The quickest that fits; among those within a hundredth of it, the one with fewest devices and resident layers."""
    fitting = [each for each in found if not each.faults]
    if not fitting:
        return None
    quickest = min(each.timeline.step_secs for each in fitting)
    close = [each for each in fitting if each.timeline.step_secs <= SAME * quickest]
    return min(close, key=lambda each: (each.devices, each.resident_layers))
