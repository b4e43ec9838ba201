"""A run from its settings to its last checkpoint: everything is looked for before a device is opened."""

from __future__ import annotations

import platform
from contextlib import ExitStack, closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from graphcache.process.limits import available_cpus
from trainer.checkpoint.save import files_beside
from trainer.config import RunConfig
from trainer.data.ahead import TokensAhead
from trainer.host.heap import give_back_free_memory, share_one_heap
from trainer.host.numerics import deterministic, thread_count
from trainer.optim.adamw import open_optimizer, worker_count
from trainer.plan.prediction import from_artifacts
from trainer.preflight.host_load import wait_for_load
from trainer.preflight.preflight import Findings, Ready
from trainer.record.folder import RunFolder, RunFolderError
from trainer.record.report import Progress, steps_line, summary
from trainer.record.say import data_lines, held_out_lines
from trainer.record.watchers import open_watchers
from trainer.run.call_times import CallTimes
from trainer.run.held_out import HeldOut
from trainer.run.load import build_network, initial_state, load_weights, saved_state
from trainer.run.session import Session
from trainer.run.show import warn, warn_unproven
from trainer.run.stop import Stopped, StopRequest
from trainer.run.times import record_times

# Whose versions a run's numbers may depend on.
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "llvmlite", "furiosa-torch", "graphcache")


def run_held(config: RunConfig, tokens: TokensAhead, folder: RunFolder, stop: StopRequest) -> dict[str, Any]:
    """Train in a folder that this process holds. tokens: what was made of data files already."""
    with deterministic(thread_count()):
        share_one_heap()
        ready = Findings(config, tokens, held=True).ready()
        warn(ready.checkpoint)
        warn_unproven(ready.graphs)
        give_back_free_memory()
        saved: Path | None
        times: dict[str, Any]
        with Progress(ready.steps) as progress:
            for line in _start_lines(ready):
                progress.say(line)
            held_out = _held_out(ready, folder)
            owed = held_out is not None and held_out.owes(ready.done, ready.steps)
            if ready.saved is not None and ready.done >= ready.steps and not owed:
                saved, times = ready.saved.folder, {}  # nothing to do, so nothing is written
            else:
                load = wait_for_load(config.wait_for_load, config.wait_secs, progress.say)
                saved, times = _train(ready, folder, stop, progress, load, held_out)
    # A run that was killed may have left lines of steps that no checkpoint has.
    records = folder.steps_up_to(max(ready.done, ready.steps))
    return {**summary(config, records, saved), **times}


def _start_lines(ready: Ready) -> list[str]:
    devices = [f"device   {line}" for line in ready.choice.lines()]
    if ready.timing is not None:
        devices.append(f"device   {ready.timing}")
    data = data_lines(ready.corpus.facts, ready.config.seq)
    if ready.held_out is not None:
        data += held_out_lines(ready.held_out.facts, ready.corpus.facts, ready.config.seq)
    return [*devices, *data, steps_line(ready.steps, ready.saved)]


def _train(
    ready: Ready,
    folder: RunFolder,
    stop: StopRequest,
    progress: Progress,
    load: float | None,
    held_out: HeldOut | None,
) -> tuple[Path | None, dict[str, Any]]:
    """The last checkpoint, and what the summary says of step times."""
    config = ready.config
    with ExitStack() as opened:
        devices = [opened.enter_context(closing(device)) for device in ready.open_devices()]
        optimizer = opened.enter_context(closing(open_optimizer(config)))
        if worker_count(config) < config.update_workers:
            progress.say(
                f"--update-workers {config.update_workers}: {worker_count(config)}, a thread for each CPU here"
            )
        network = build_network(ready.step, devices)
        state_of = initial_state(ready.checkpoint) if ready.saved is None else saved_state(ready.saved)
        load_weights(network, optimizer, state_of)
        give_back_free_memory()
        progress.say(f"loaded {ready.checkpoint.parameters:,} parameters")
        watchers = opened.enter_context(closing(open_watchers(folder.root, config.tensorboard, ready.done)))
        session = Session(
            config=config,
            source=ready.checkpoint,
            beside=files_beside(ready.checkpoint.folder),
            corpus=ready.corpus,
            network=network,
            optimizer=optimizer,
            devices=devices,
            folder=folder,
            watchers=watchers,
            held_out=held_out,
            call_times=CallTimes(devices),
            done=ready.done,
            steps=ready.steps,
        )
        predicted = from_artifacts(
            ready.step,
            None if ready.graphs is None or config.eager_layers else ready.graphs.estimates(),
            config,
            workers=worker_count(config),
            in_turns=network.in_turns,
        )
        facts = {**environment(ready), "host_load": load, "prediction": predicted.as_json()}
        folder.begin_session(config.as_json(), facts, ready.done)
        try:
            saved = session.train(stop, progress)
        except Stopped:
            with suppress(RunFolderError):  # that it was stopped, and is saved, is what counts
                record_times(session, ready, predicted)
            raise
        if saved is None and ready.saved is not None:  # all steps were done, and an evaluation was not
            saved = ready.saved.folder
        return saved, record_times(session, ready, predicted)


def _held_out(ready: Ready, folder: RunFolder) -> HeldOut | None:
    if ready.held_out is None:
        return None
    return HeldOut(ready.held_out, ready.config, folder.steps_up_to(ready.done))


def environment(ready: Ready) -> dict[str, Any]:
    """What the run's numbers come from: versions, threads, devices, data, graphs."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {
            "cpus": available_cpus(),
            "torch_threads": torch.get_num_threads(),
            "update_workers": worker_count(ready.config),
            "arch": platform.machine(),
        },
        "parameters": ready.checkpoint.parameters,
        "data": ready.corpus.facts.as_json(),
        "eval_data": None if ready.held_out is None else ready.held_out.facts.as_json(),
        "devices": ready.choice.lines(),
        "memory": ready.memory.as_json(),
        "graphs": [] if ready.graphs is None else ready.graphs.as_json(),
        "resumed_from_step": ready.done,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
