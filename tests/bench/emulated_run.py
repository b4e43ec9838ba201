"""Steps of a whole run on emulated cards without arithmetic: real updates on the host, device time slept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.emulator import EmulatedCard
from graphcache.device.guarded import GuardedBackend
from graphcache.manifest.file import read_manifest
from tests.device.example import no_artifacts
from trainer.architecture.config import ModelConfig
from trainer.config import RunConfig
from trainer.data.corpus import Batch
from trainer.host.heap import give_back_free_memory
from trainer.host.pages import empty
from trainer.optim.adamw import AdamW
from trainer.optim.base import AdamState
from trainer.optim.scalars import AdamSettings
from trainer.preflight.cached_graphs import MODEL_CATALOGS
from trainer.record.report import step_record
from trainer.run.call_times import CallTimes
from trainer.run.load import build_network, load_weights
from trainer.step.choose import choose_step
from trainer.step.clock import Clock
from trainer.step.loop import run_step
from trainer.step.schedule import Step

MANIFEST = Path("cache_manifests/smollm2-135m.json")
# Fewer than the model has, so that a row takes seconds.
LAYERS = 16
# Estimates are multiplied by this, and the link is as many times slower: a step's device time is about its updates'.
SLOWER = 8.0
LINK_BYTES_PER_SEC = 20e9 / SLOWER
LR = 1e-6


@dataclass(frozen=True)
class Layout:
    """How a step is laid out; `resident` layers on each device."""

    devices: int
    resident: int
    workers: int
    accum: int


def step_of(layout: Layout) -> Step:
    """The step that the trainer would choose."""
    recorded = read_manifest(MANIFEST)
    model = replace(ModelConfig.from_json(recorded.config or {}), layers=LAYERS)
    config = RunConfig(
        model=Path(),
        data=Path(),
        out=Path(),
        accum=layout.accum,
        seq=recorded.catalog_options.sequence,
        resident_layers=layout.resident,
    )
    step, _ = choose_step(
        model, config, layout.devices, micro_batches=layout.accum, pool_bytes=1 << 50, workers=layout.workers
    )
    return step


class EmulatedRun:
    """A run of a layout that is loaded; `in_turns` as the trainer's network."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.step = step_of(layout)
        self._opened, self._done = ExitStack(), 0

    def __enter__(self) -> EmulatedRun:
        opened, options = self._opened.__enter__(), self.step.options
        self._cards = [opened.enter_context(card(f"emulator:{number}")) for number in range(self.layout.devices)]
        optimizer = AdamW(
            AdamSettings(),
            workers=self.layout.workers,
            dtype=options.dtype,
            tile_elements=options.tile_elements,
        )
        self._optimizer = opened.enter_context(closing(optimizer))
        self._network = build_network(self.step, self._cards)
        load_weights(
            self._network, optimizer, lambda unit: {p.name: _state(math.prod(p.shape)) for p in unit.parameters}
        )
        self.in_turns = self._network.in_turns
        self.call_times = CallTimes(self._cards)
        self.do(1)  # it loads
        self.call_times.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def do(self, steps: int) -> list[dict[str, Any]]:
        """Some more steps: their lines of steps.jsonl."""
        records = []
        for _ in range(steps):
            self._done += 1
            batches = [_batch(self.step.options.sequence) for _ in range(self.layout.accum)]
            result = run_step(self._network, self._optimizer, batches, step=self._done, lr=LR, clock=Clock())
            records.append(step_record(self._done, LR, result, self._cards))
            give_back_free_memory()
        return records


@contextmanager
def card(name: str) -> Iterator[GuardedBackend]:
    """An emulated card whose times are the manifest's estimates, slowed down."""
    estimates = {item.graph.name: item.compiled.estimate_ns for item in read_manifest(MANIFEST).graphs if item.compiled}
    timing = EmulatedTime(lambda graph: estimates.get(graph.name), SLOWER, LINK_BYTES_PER_SEC, arithmetic=False)
    made = EmulatedCard(no_artifacts, name=name, eager_catalogs=(*MODEL_CATALOGS, "adamw"), timing=timing)
    with closing(GuardedBackend(made)) as backend:
        yield backend


def _state(elements: int) -> AdamState:
    """Weights of zero, so that with activations of one the loss stays finite."""
    master, exp_avg, exp_avg_sq = (empty((elements,), torch.float32).fill_(value) for value in (0.0, 0.5, 0.5))
    return AdamState(master, exp_avg, exp_avg_sq)


def _batch(seq: int) -> Batch:
    tokens = torch.arange(seq)[None]
    return Batch(tokens, tokens + 1, "made up")
