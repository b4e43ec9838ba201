"""A real model's step on emulated cards without arithmetic: the compiler's estimates of device time, slept.

Nothing is computed and no weight is read, so that a model of any size can be timed on a small host. What comes out is
the time of the schedule: of the calls, of what waits for what, and of the trainer's own work between calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from graphcache.device.base import Buffer
from graphcache.device.emulated_time import EmulatedTime
from graphcache.device.emulator import EmulatedCard
from graphcache.device.guarded import GuardedBackend
from graphcache.graph import Graph
from graphcache.manifest.file import read_manifest
from tests.device.example import no_artifacts
from trainer.config import RunConfig
from trainer.data.corpus import Batch
from trainer.model.config import ModelConfig
from trainer.preflight.cached_graphs import MODEL_CATALOGS
from trainer.run.load import build_network
from trainer.step.choose import choose_step
from trainer.step.clock import Clock
from trainer.step.network import Network
from trainer.step.play import StepPlay
from trainer.step.schedule import Update

# Estimates are multiplied by this, and the link is as many times slower, so that the host's own work counts for less.
SLOWER = 16.0
LINK_BYTES_PER_SEC = 20e9


def pipeline_secs(manifest: Path, devices: int, accum: int) -> tuple[float, int]:
    """Forward and backward of a step of the manifest's model, in emulated seconds, and the layers in a group."""
    recorded = read_manifest(manifest)
    model = ModelConfig.from_json(recorded.config or {})
    config = RunConfig(Path(), Path(), Path(), accum=accum)
    with ExitStack() as opened:
        cards = [opened.enter_context(_card(manifest, f"emulator:{i}")) for i in range(devices)]
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


@contextmanager
def _card(manifest: Path, name: str) -> Iterator[GuardedBackend]:
    estimates = {item.graph.name: item.compiled.estimate_ns for item in read_manifest(manifest).graphs if item.compiled}

    def estimate_of(graph: Graph) -> int | None:
        return estimates.get(graph.name)

    timing = EmulatedTime(estimate_of, SLOWER, LINK_BYTES_PER_SEC / SLOWER, arithmetic=False)
    with closing(
        GuardedBackend(EmulatedCard(no_artifacts, name=name, eager_catalogs=MODEL_CATALOGS, timing=timing))
    ) as card:
        yield card


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
