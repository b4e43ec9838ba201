"""A step played in virtual time: its own description, with the cost of each operation instead of the operation."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainer.plan.costs import StepCosts
from trainer.plan.work import layer_update_calls, pass_calls, passes, update_elements
from trainer.step.schedule import Activation, Arrive, Leave, Pass, Stage, Step, Update

# A job of an update worker, as `trainer.optim.offload` cuts them.
JOB_ELEMENTS = 8 << 20


@dataclass(frozen=True)
class Span:
    """Something that takes time on a lane: `device 0`, `link 0`, `worker 2`. Seconds from the step's beginning."""

    lane: str
    name: str
    start: float
    secs: float


@dataclass
class Timeline:
    """A played step.

    step_secs:        from its beginning to the end of the last update
    update_wait_secs: what of it is after all passes
    device_secs:      each device's passes and copies that it waits for, by kind
    update_busy_secs: over all workers
    """

    step_secs: float = 0.0
    update_wait_secs: float = 0.0
    update_busy_secs: float = 0.0
    device_secs: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    spans: list[Span] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "step_secs": self.step_secs,
            "update_wait_secs": self.update_wait_secs,
            "update_busy_secs": self.update_busy_secs,
            "device_secs": {str(device): dict(kinds) for device, kinds in sorted(self.device_secs.items())},
        }


def play(step: Step, costs: StepCosts, *, in_turns: bool = False, by_micro_batch: bool = False) -> Timeline:
    """Play a step.

    in_turns:       devices take turns on one thread of the host, as furiosa-torch 2026.2 needs it
    by_micro_batch: each micro-batch goes all the way up and down before the next, as in the runs of docs/placement.md
    """
    return _Play(step, costs, in_turns).run(by_micro_batch)


class _Play:
    def __init__(self, step: Step, costs: StepCosts, in_turns: bool) -> None:
        self._step, self._costs, self._in_turns = step, costs, in_turns
        self._copy_secs = step.activation.size_bytes / costs.copy_bytes_per_sec
        self._now: dict[int, float] = defaultdict(float)  # when each device's thread is done with what it has begun
        self._link: dict[int, float] = defaultdict(float)
        self._sent: dict[tuple[Activation, int], float] = {}
        self._jobs: list[tuple[float, Update]] = []
        self._free = [0.0] * costs.workers  # when each worker is, by the updates so far
        self._calls = {
            (kind, first): pass_calls(step, kind, first=first).total()
            for kind in passes(step)
            for first in (True, False)
        }
        self.timeline = Timeline()

    def run(self, by_micro_batch: bool) -> Timeline:
        last = self._step.micro_batches - 1
        if by_micro_batch:
            for micro_batch in range(self._step.micro_batches):
                for stage in self._step.stages:
                    self._do(stage, range(micro_batch, micro_batch + 1), updates=micro_batch == last)
        else:
            for stage in self._step.stages:
                self._do(stage, range(self._step.micro_batches), updates=True)
        passes_end = max(self._now.values())
        self._run_updates(passes_end)
        return self.timeline

    def _do(self, stage: Stage, micro_batches: range, *, updates: bool) -> None:
        thread = 0 if self._in_turns else stage.device
        before = self._now[thread]
        for micro_batch in micro_batches:
            began = self._now[thread]
            for work in stage.work:
                match work:
                    case Arrive():
                        self._arrive(thread, stage.device, work.what, micro_batch, before)
                    case Leave():
                        self._spend(thread, stage.device, "download", self._copy_secs)
                        self._sent[work.what, micro_batch] = self._now[thread]
                    case Pass():
                        first = micro_batch == 0
                        secs = self._costs.of_pass(work.kind, first=first)
                        secs += self._busy_secs(thread, self._calls[work.kind, first], secs)
                        self._spend(thread, stage.device, work.kind, secs)
            before = began
        for update in stage.updates if updates else ():
            each = self._costs.of_device_update(resident=update.resident, layer=isinstance(update.of, int))
            secs = each * update_elements(self._step, update)
            if isinstance(update.of, int):
                calls = layer_update_calls(self._step, resident=update.resident).total()
                # An update on the host keeps workers busy while the rest of it is still on its way to them.
                busy = calls * self._costs.busy_call_secs
                secs += self._busy_secs(thread, calls, secs) if update.resident else busy
            self._spend(thread, stage.device, "gradients", secs)
            self._jobs.append((self._now[thread], update))
            if not self._step.clipped and not update.resident:
                self._occupy(self._now[thread], update)

    def _busy_secs(self, thread: int, calls: int, secs: float) -> float:
        """What calls that take `secs` take longer, for the part of that time in which any worker updates."""
        extra, now = calls * self._costs.busy_call_secs, self._now[thread]
        left = max(self._free) - now
        if not extra or left <= 0:
            return 0.0
        return extra if left >= secs + extra else extra * left / (secs + extra)

    def _occupy(self, submitted: float, update: Update) -> None:
        """Workers are busy with it from when they are free: as `_run_updates` has it, but for the order of devices."""
        elements = update_elements(self._step, update)
        jobs = math.ceil(elements / JOB_ELEMENTS)
        for _ in range(jobs):
            worker = self._free.index(min(self._free))
            self._free[worker] = max(self._free[worker], submitted) + elements / jobs * self._costs.update_secs

    def _arrive(self, thread: int, device: int, what: Activation, micro_batch: int, allowed: float) -> None:
        """An upload waits for its value, for the link, and for the device to begin the micro-batch before."""
        start = max(self._sent.get((what, micro_batch), 0.0), self._link[device], allowed)
        self._link[device] = start + self._copy_secs
        self.timeline.spans.append(Span(f"link {device}", "upload", start, self._copy_secs))
        self._now[thread] = max(self._now[thread], self._link[device])

    def _spend(self, thread: int, device: int, kind: str, secs: float) -> None:
        if not secs:
            return
        self.timeline.spans.append(Span(f"device {device}", kind, self._now[thread], secs))
        self.timeline.device_secs[device][kind] += secs
        self._now[thread] += secs

    def _run_updates(self, passes_end: float) -> None:
        """Workers take jobs in the order in which they were submitted. Under a clip norm none begins before the end."""
        free = [(0.0, worker) for worker in range(self._costs.workers)]
        done = passes_end
        for submitted, secs, name in self._host_jobs(passes_end):
            ready, worker = heapq.heappop(free)
            start = max(ready, submitted)
            heapq.heappush(free, (start + secs, worker))
            self.timeline.spans.append(Span(f"worker {worker}", name, start, secs))
            self.timeline.update_busy_secs += secs
            done = max(done, start + secs)
        self.timeline.step_secs = done
        self.timeline.update_wait_secs = done - passes_end

    def _host_jobs(self, passes_end: float) -> Iterator[tuple[float, float, str]]:
        """When each job is submitted, its seconds, its name."""
        for submitted, update in sorted(self._jobs, key=lambda job: job[0]):
            if update.resident:
                continue
            left = update_elements(self._step, update)
            while left > 0:
                elements = min(left, JOB_ELEMENTS)
                left -= elements
                secs = elements * self._costs.update_secs
                yield passes_end if self._step.clipped else submitted, secs, f"update {update.of}"
