"""From open devices to a network whose weights are in place: from the input checkpoint, or from a saved one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from graphcache.device.base import DeviceBackend
from trainer.checkpoint.finite import is_finite
from trainer.checkpoint.folder import SavedCheckpoint
from trainer.checkpoint.load import read_state
from trainer.checkpoint.pretrained import InputCheckpoint, WeightsError
from trainer.host.pages import empty
from trainer.model.head import HeadRunner
from trainer.model.layer import LayerRunner
from trainer.model.tiles import TileRunner
from trainer.optim.base import AdamState, Optimizer, Unit
from trainer.step.network import Network
from trainer.step.schedule import Step
from trainer.step.units import EmbeddingUnit, HeadPlace, HeadUnit, LayerUnit, NormUnit


def build_network(step: Step, devices: Sequence[DeviceBackend]) -> Network:
    """The model's units on their devices, graphs loaded, weights not yet. Raises MissingGraphsError."""
    model, options = step.model, step.options
    layers: dict[int, LayerUnit] = {}
    resident = step.placement.resident_layers()
    for number, device in enumerate(devices):
        runner = LayerRunner(device, model, options)
        runner.load()
        tables = runner.upload_tables()
        tiles = TileRunner(device, runner.weights, options)
        tiles.load()
        for i in step.placement.layers_of(number):
            layers[i] = LayerUnit(i, runner, tables, tiles, resident=i in resident)
    head_runner = HeadRunner(devices[-1], model, options)
    head_runner.load()
    place = HeadPlace(head_runner)
    head = HeadUnit(place)
    embedding = head if model.tied else EmbeddingUnit(model.vocab, model.hidden, options.dtype)
    in_order = tuple(layers[i] for i in range(model.layers))
    return Network(
        step=step, devices=devices, embedding=embedding, layers=in_order, norm=NormUnit(place), head=head, place=place
    )


def load_weights(network: Network, optimizer: Optimizer, state_of: Callable[[Unit], dict[str, AdamState]]) -> None:
    """Give every unit its weights and the optimizer its state, a unit at a time."""
    for unit in network.units:
        states = state_of(unit)
        for name, state in states.items():
            unit.place(name).copy_(state.master)
            unit.install(name)
        optimizer.adopt(unit, states)


def initial_state(checkpoint: InputCheckpoint) -> Callable[[Unit], dict[str, AdamState]]:
    """Where a new run begins: the checkpoint's own values as float32 masters, moments of zero.

    Raises WeightsError when a value is not finite.
    """

    def state_of(unit: Unit) -> dict[str, AdamState]:
        return {p.name: _begun(unit.prefix + p.name, checkpoint) for p in unit.parameters}

    return state_of


def _begun(name: str, checkpoint: InputCheckpoint) -> AdamState:
    weight = checkpoint.read(name).view(-1)
    if not is_finite(weight):
        raise WeightsError(f"{name} holds numbers that are not finite", hint="--model is damaged, or did not converge")
    shape = tuple(weight.shape)
    master, exp_avg, exp_avg_sq = (empty(shape, torch.float32) for _ in range(3))
    return AdamState(master.copy_(weight), exp_avg.zero_(), exp_avg_sq.zero_())


def saved_state(saved: SavedCheckpoint) -> Callable[[Unit], dict[str, AdamState]]:
    """Where a resumed run goes on."""
    return lambda unit: read_state(saved, unit)
