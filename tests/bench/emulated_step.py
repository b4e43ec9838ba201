"""A real model's step on emulated cards without arithmetic: the compiler's estimates of device time, slept.

Nothing is computed there and no weight is read, so a model of any size can be timed on a small host. What comes out
is the time of the schedule: of the calls, of what waits for what, and of the trainer's own work between calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphcache.device.base import Buffer
from graphcache.device.card import POOL_BYTES
from graphcache.device.emulated_time import EmulatedTime, EstimateOf
from graphcache.device.emulator import EmulatedCard
from graphcache.device.guarded import GuardedBackend
from graphcache.manifest.file import read_manifest
from tests.device.example import no_artifacts
from trainer.architecture.config import ModelConfig
from trainer.architecture.parameters import parameter_shapes
from trainer.catalogs.layer import parts
from trainer.config import RunConfig
from trainer.data.corpus import Batch
from trainer.optim.adamw import AdamW
from trainer.optim.base import AdamState
from trainer.optim.scalars import AdamSettings
from trainer.preflight.cached_graphs import MODEL_CATALOGS
from trainer.run.load import build_network, load_weights
from trainer.step.choose import choose_step
from trainer.step.clock import Clock
from trainer.step.loop import StepResult, run_step
from trainer.step.network import Network
from trainer.step.play import StepPlay
from trainer.step.schedule import BACKWARD, Step, Update

# Estimates are multiplied by this, and the link is as many times slower, so that the host's own work counts for less.
SLOWER = 16.0
LINK_BYTES_PER_SEC = 20e9


def pipeline_secs(manifest: Path, devices: int, accum: int) -> tuple[float, int]:
    """Forward and backward of a step of the manifest's model, in emulated seconds, and the layers in a group."""
    recorded = read_manifest(manifest)
    model = ModelConfig.from_json(recorded.config or {})
    config = RunConfig(model=Path(), data=Path(), out=Path(), accum=accum)
    with ExitStack() as opened:
        timing = EmulatedTime(_estimate_of(manifest), SLOWER, LINK_BYTES_PER_SEC / SLOWER, arithmetic=False)
        cards = [opened.enter_context(_card(f"emulator:{i}", timing)) for i in range(devices)]
        step, plan = choose_step(model, config, devices, micro_batches=accum, pool_bytes=cards[0].pool_bytes)
        network = build_network(step, cards)
        _fill(network)
        batches = [_batch(config.seq) for _ in range(accum)]
        play = StepPlay(
            network,
            batches,
            scale=1.0,
            clock=Clock(),
            on_loss=lambda number, loss: None,
            on_final=lambda update: _let_go(network, update),
        )
        began = time.perf_counter()
        play.run()
        return (time.perf_counter() - began) / SLOWER, plan.group_layers


def update_wait_secs(manifest: Path, accum: int) -> tuple[float, float]:
    """What a step waits for the host's updates at its end, and what the update of its last group takes; seconds.

    The updates are real, by one worker. Device time is slowed down until backward takes as long as all of them: the
    slowest host that can keep up. The last group is the lowest layer and what is updated after it, the embedding.
    """
    alone = _one_step(manifest, accum, factor=1e-6)
    backward_secs = alone.update.busy_secs
    found = _one_step(manifest, accum, factor=backward_secs / _backward_secs(manifest, accum))
    model = ModelConfig.from_json(read_manifest(manifest).config or {})
    layer = sum(math.prod(shape) for shape in parameter_shapes(model).values())
    table = model.vocab * model.hidden
    share = (layer + table) / (layer * model.layers + table * (1 if model.tied else 2))
    return found.update.wait_secs, share * found.update.busy_secs


def _step_of(manifest: Path, accum: int) -> Step:
    recorded = read_manifest(manifest)
    model = ModelConfig.from_json(recorded.config or {})
    config = RunConfig(model=Path(), data=Path(), out=Path(), accum=accum, seq=recorded.catalog_options.sequence)
    return choose_step(model, config, 1, micro_batches=accum, pool_bytes=POOL_BYTES)[0]


def _backward_secs(manifest: Path, accum: int) -> float:
    """Of a step's backward through the layers, by the estimates."""
    step, estimate_of = _step_of(manifest, accum), _estimate_of(manifest)
    graphs = {graph.name: graph for graph in parts(step.model, step.options).values()}
    backward = replace(step, stages=tuple(stage for stage in step.stages if stage.kind == BACKWARD))
    calls = backward.calls(0).items()
    return sum(count * (estimate_of(graphs[name]) or 0) for name, count in calls if name in graphs) * 1e-9


def _one_step(manifest: Path, accum: int, *, factor: float) -> StepResult:
    step = _step_of(manifest, accum)
    timing = EmulatedTime(_estimate_of(manifest), factor, LINK_BYTES_PER_SEC, arithmetic=False)
    with ExitStack() as opened:
        card = opened.enter_context(_card("emulator", timing))
        settings = AdamSettings()
        tile_elements = step.options.tile_elements
        optimizer = opened.enter_context(
            closing(AdamW(settings, workers=1, dtype=step.options.dtype, tile_elements=tile_elements))
        )
        network = build_network(step, [card])
        load_weights(network, optimizer, lambda unit: {p.name: _state(math.prod(p.shape)) for p in unit.parameters})
        batches = [_batch(step.options.sequence) for _ in range(accum)]
        return run_step(network, optimizer, batches, step=1, lr=1e-3, clock=Clock())


def _state(elements: int) -> AdamState:
    return AdamState(*(torch.full((elements,), 0.5) for _ in range(3)))


@contextmanager
def _card(name: str, timing: EmulatedTime) -> Iterator[GuardedBackend]:
    card = EmulatedCard(no_artifacts, name=name, eager_catalogs=MODEL_CATALOGS, timing=timing)
    with closing(GuardedBackend(card)) as backend:
        yield backend


def _estimate_of(manifest: Path) -> EstimateOf:
    estimates = {item.graph.name: item.compiled.estimate_ns for item in read_manifest(manifest).graphs if item.compiled}
    return lambda graph: estimates.get(graph.name)


def _fill(network: Network) -> None:
    """Weights that take no memory."""
    place, dtype = network.place, network.step.options.dtype
    for unit in network.layers:
        for weight in unit.weights:
            unit.replace(weight.name, _upload(unit.backend, weight.shape, dtype))
    place.norm = _upload(network.devices[-1], network.step.norm.shape, dtype)
    place.chunks = tuple(_upload(network.devices[-1], part.shape, dtype) for part in network.step.chunks)
    place.table = _of_one_value((network.step.model.vocab, network.step.model.hidden), dtype)


def _upload(device: Any, shape: tuple[int, ...], dtype: str) -> Buffer:
    return device.upload(_of_one_value(shape, dtype), "weight", lent=True)


def _of_one_value(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.zeros((), dtype=getattr(torch, dtype)).expand(shape)


def _batch(seq: int) -> Batch:
    tokens = torch.arange(seq)[None]
    return Batch(tokens, tokens + 1, "made up")


def _let_go(network: Network, update: Update) -> None:
    """What an update would do first: free weights and accumulators, the layers' by way of rounded tiles."""
    if isinstance(update.of, int):
        unit = network.layers[update.of]
        for _, piece in unit.pieces():
            if isinstance(piece, Buffer):
                unit.backend.free(piece)
    elif update.of == "head":
        network.devices[-1].free(*network.place.take_table().chunks)
