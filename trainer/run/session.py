"""The steps of a run that is loaded: train, report, save, and end well when asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphcache.device.base import DeviceBackend
from graphcache.errors import GraphcacheError
from trainer.checkpoint.finite import NonFiniteStateError
from trainer.checkpoint.folder import complete_steps, delete_all_but, sweep
from trainer.checkpoint.pretrained import InputCheckpoint
from trainer.checkpoint.save import Contents, save
from trainer.config import RunConfig
from trainer.data.corpus import Corpus
from trainer.host.heap import give_back_free_memory
from trainer.optim.base import Optimizer
from trainer.optim.clip import NonFiniteGradientError
from trainer.optim.schedule import Schedule
from trainer.record.folder import RunFolder
from trainer.record.report import Progress, step_record
from trainer.record.watchers import Watchers
from trainer.run.call_times import CallTimes
from trainer.run.held_out import LOSS, HeldOut
from trainer.run.stop import Stopped, StopRequest
from trainer.run.traced import observed
from trainer.step.clock import Clock
from trainer.step.loop import NonFiniteLossError, run_step
from trainer.step.network import Network
from trainer.step.trace import StepTrace


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything that a step touches. `steps` are those of the whole run, `done` those before this session; `beside` is
    what checkpoints hold of the model's folder; `held_out` is None without --eval-data; `traces` are of the first two
    steps."""

    config: RunConfig
    source: InputCheckpoint
    beside: Mapping[str, bytes]
    corpus: Corpus
    network: Network
    optimizer: Optimizer
    devices: Sequence[DeviceBackend]
    folder: RunFolder
    watchers: Watchers
    held_out: HeldOut | None
    call_times: CallTimes
    traces: list[StepTrace] = field(default_factory=list)
    done: int
    steps: int

    def train(self, stop: StopRequest, progress: Progress) -> Path | None:
        """All steps that are left; returns the last checkpoint, None when there was nothing to do.

        Raises Stopped after the step, and its checkpoint, in which a signal came.
        """
        config, saved = self.config, None
        schedule = Schedule(config.lr, config.schedule, config.warmup_steps, self.steps)
        with stop.deferred():
            self._make_up_evaluation(stop, progress)
            self._tidy(progress)
            for step in range(self.done + 1, self.steps + 1):
                record = self._step(step, schedule.at(step), stop)
                progress.step(record)
                for line in self.watchers.step(record):
                    progress.say(line)
                if step == self.done + 1:
                    self._write_calls(step)
                    self.call_times.begin()
                periodic = config.save_every is not None and step % config.save_every == 0
                if periodic or step == self.steps or stop.signal is not None or self._is_best(step):
                    saved = self._save(step)
                    progress.say(f"saved {saved}")
                    self._tidy(progress)
                    # Also for a signal that came while saving.
                    if stop.signal is not None and (step < self.steps or self._owes(step)):
                        raise Stopped(stop.signal)
        return saved

    def _step(self, step: int, lr: float, stop: StopRequest) -> Mapping[str, Any]:
        trace = self._trace_of(step)
        clock = Clock(trace)
        with clock.phase("data"):
            batches = self.corpus.step(
                step - 1, seed=self.config.seed, micro_batch=self.config.micro_batch, accum=self.config.accum
            )
        try:
            with observed(trace, self.devices, self.optimizer):
                result = run_step(self.network, self.optimizer, batches, step=step, lr=lr, clock=clock)
        except (NonFiniteLossError, NonFiniteGradientError):
            if step - 1 > self.done:
                self._save_before_error(step - 1)
            raise
        record = step_record(step, lr, result, self.devices)
        if self.config.emulated_time is not None:
            record["emulated_times"] = True
        if self.held_out is not None and self.held_out.is_due(step, self.steps):
            try:
                record |= self.held_out.evaluate(self.network, step, lambda: stop.signal is not None)
            except NonFiniteLossError:
                self.folder.append_step(record)
                self._save_before_error(step)
                raise
        self.folder.append_step(record)
        give_back_free_memory()
        return record

    def _trace_of(self, step: int) -> StepTrace | None:
        """For the second step of the session, since the first loads; for the first where there is no other."""
        if step > self.done + 2:
            return None
        self.traces.append(StepTrace())
        return self.traces[-1]

    def _make_up_evaluation(self, stop: StopRequest, progress: Progress) -> None:
        """Of the last step of the session before, which a signal or an error kept from it. Raises Stopped."""
        if self.held_out is None or not self._owes(self.done):
            return
        found = self.held_out.evaluate(self.network, self.done, lambda: stop.signal is not None)
        if stop.signal is not None and not found:
            raise Stopped(stop.signal)
        record = {**self.folder.steps_up_to(self.done)[-1], **found}
        self.folder.replace_last_step(record)
        for line in self.watchers.step(record):
            progress.say(line)
        progress.say(f"step {self.done}, which the session before did not evaluate: eval loss {found[LOSS]:.4f}")

    def _owes(self, step: int) -> bool:
        return self.held_out is not None and self.held_out.owes(step, self.steps)

    def _save_before_error(self, step: int) -> None:
        """The steps up to this one are good, unless the last update is the cause. No older checkpoint goes for it."""
        try:
            self._save(step)
        except NonFiniteStateError:
            raise
        except GraphcacheError:
            pass  # that they cannot be saved is not the error to report

    def _write_calls(self, step: int) -> None:
        """What a step of `--accum` micro-batches calls, as it is described: calls.json."""
        calls = {device.name: self.network.step.calls(number) for number, device in enumerate(self.devices)}
        self.folder.write("calls.json", {"step": step, "calls": calls})

    def _tidy(self, progress: Progress) -> None:
        """Delete what is not kept; what cannot be deleted is no reason to end."""
        checkpoints = self.folder.checkpoints
        best = self._best_of(complete_steps(checkpoints))
        for kept in (*sweep(checkpoints), *delete_all_but(checkpoints, self.config.keep, best)):
            progress.say(kept)

    def _best_of(self, steps: Sequence[int]) -> int | None:
        """With --best, the step of the lowest held-out loss."""
        return self.held_out.best_of(steps) if self.held_out is not None and self.config.best else None

    def _is_best(self, step: int) -> bool:
        return self._best_of([*complete_steps(self.folder.checkpoints), step]) == step

    def _save(self, step: int) -> Path:
        self.folder.sync_steps()  # no checkpoint without the record of its steps
        contents = Contents(
            config_json=self.source.config_json,
            beside=self.beside,
            dtype=self.config.dtype,
            units=self.network.units,
            state=self.optimizer.state,
            config=self.config.as_json(),
            data=self.corpus.facts.as_json(),
        )
        return save(self.folder.checkpoints, step, contents)
