"""Carries out the stages of a step on their devices, as `trainer.step.schedule` describes them.

Each device has a thread of its own where graph calls of different devices may run at the same time. Else this thread
does one stage after the other, in the order of the description. Every device does the same work in the same order
either way, and what goes from one to another goes over the host bit for bit, so the result is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from graphcache.device.base import Buffer, DeviceBackend
from trainer.data.corpus import Batch
from trainer.host.numerics import whole_teams
from trainer.step.clock import Clock
from trainer.step.host_activations import AbandonedError, HostActivations
from trainer.step.masks import DocumentMasks
from trainer.step.network import Network
from trainer.step.schedule import FORWARD, HEAD, Activation, Arrive, Drop, Leave, Pass, Stage, Update
from trainer.step.uploads import UploadThread

# How often a waiting main thread looks whether it has been interrupted.
LOOK_SECS = 1.0

OnLoss = Callable[[int, float], None]
OnFinal = Callable[[Update], None]


class StepPlay:
    """One step of `network` over `batches`, gradients scaled by `scale`.

    on_loss:  called with the micro-batch's number, from 0, and the loss summed over its labels, in their order
    on_final: called with each update when its gradients are final, by the thread of the stage's device
    """

    def __init__(
        self,
        network: Network,
        batches: Sequence[Batch],
        *,
        scale: float,
        clock: Clock,
        on_loss: OnLoss,
        on_final: OnFinal,
    ) -> None:
        self.network = network
        self.batches = batches
        self.scale = scale
        self.clock = clock
        self.on_loss = on_loss
        self.on_final = on_final
        self.host = HostActivations()
        self._step = replace(network.step, micro_batches=len(batches))

    def run(self) -> None:
        """All of it. Raises the first error of any device's thread."""
        devices = [DevicePlay(self, number) for number in range(len(self.network.devices))]
        if self.network.in_turns:
            for stage in self._step.stages:
                devices[stage.device].do(stage)
        else:
            self._run_threads(devices)
        for device in devices:
            device.end()

    def _run_threads(self, devices: Sequence[DevicePlay]) -> None:
        errors: list[BaseException] = []
        threads_of_torch = torch.get_num_threads()

        def work(number: int) -> None:
            try:
                with whole_teams():
                    torch.set_num_threads(threads_of_torch)
                    for stage in self._step.stages:
                        if stage.device == number:
                            devices[number].do(stage)
            except BaseException as error:  # whatever ends a thread must reach the main thread, SystemExit too
                errors.append(error)
                self.host.abandon()

        # Daemons, so that a call that hangs in a driver cannot keep the process from ending.
        threads = [
            threading.Thread(target=work, args=(number,), name=f"device-{number}", daemon=True)
            for number in range(len(devices))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_SECS)
        except BaseException:  # a second SIGINT
            self.host.abandon()
            raise
        causes = [error for error in errors if not isinstance(error, AbandonedError)]
        if causes:
            raise causes[0]

    def value_of(self, work: Arrive, micro_batch: int) -> Tensor:
        """An activation on the host, [T, H] compute. Waits until it is there."""
        if work.what == Activation(0):
            return self.network.embedding.look_up(self.batches[micro_batch].tokens.flatten())
        return self.host.get(work.what, micro_batch, keeps=work.keeps)

    def send(self, what: Activation, micro_batch: int, value: Tensor) -> None:
        """To whoever takes it: another stage, or the embedding's gradient."""
        if what == Activation(0, gradient=True):
            self.network.embedding.add_rows(self.batches[micro_batch].tokens.flatten(), value.float())
        else:
            self.host.put(what, micro_batch, value)


class DevicePlay:
    """The stages of one device; `_here` are the activations on it, by micro-batch."""

    def __init__(self, play: StepPlay, number: int) -> None:
        self._play = play
        self._number = number
        self._backend = play.network.devices[number]
        self._here: dict[tuple[Activation, int], Buffer] = {}
        self._masks = DocumentMasks(play.network.step, self._backend)

    def end(self) -> None:
        """After all of its stages."""
        self._masks.free()

    def do(self, stage: Stage) -> None:
        """Its work for every micro-batch; then its updates are started."""
        with self._play.clock.lane(f"device {self._number}"):
            self._do_stage(stage)

    def _do_stage(self, stage: Stage) -> None:
        with Arrivals(self._play, self._backend, stage) as arrivals:
            for micro_batch in range(len(self._play.batches)):
                arrivals.begin(micro_batch)
                for work in stage.work:
                    self._do(work, micro_batch, arrivals)
        for update in stage.updates:
            self._play.on_final(update)

    def _do(self, work: Arrive | Leave | Drop | Pass, micro_batch: int, arrivals: Arrivals) -> None:
        clock, key = self._play.clock, micro_batch
        match work:
            case Arrive():
                with clock.phase("upload"):
                    self._here[work.what, key] = arrivals.take(work, micro_batch)
            case Leave():
                with clock.phase("download"):
                    self._play.send(work.what, micro_batch, self._backend.take(self._here.pop((work.what, key))))
            case Drop():
                self._backend.free(self._here.pop((work.what, key)))
            case Pass():
                with clock.phase(work.kind):
                    self._pass(work, micro_batch)

    def _pass(self, work: Pass, micro_batch: int) -> None:
        network, layer = self._play.network, work.layer
        x = self._here[Activation(layer), micro_batch]
        if work.kind == FORWARD:
            self._here[Activation(layer + 1), micro_batch] = network.layers[layer].forward(
                x, self._masks_of(micro_batch)
            )
        elif work.kind == HEAD:
            labels = self._play.batches[micro_batch].labels.flatten()
            loss, dx = network.place.loss_and_backward(x, labels, self._play.scale)
            self._here[Activation(layer, gradient=True), micro_batch] = dx
            self._play.on_loss(micro_batch, loss)
        else:
            dy = self._here.pop((Activation(layer + 1, gradient=True), micro_batch))
            self._here[Activation(layer, gradient=True), micro_batch] = network.layers[layer].backward(
                x, dy, self._masks_of(micro_batch)
            )

    def _masks_of(self, micro_batch: int) -> Mapping[str, Buffer]:
        return self._masks.of(micro_batch, self._play.batches[micro_batch])


class Arrivals:
    """The uploads of a stage. On a device with memory of its own, the next micro-batch's are begun beside its work."""

    def __init__(self, play: StepPlay, backend: DeviceBackend, stage: Stage) -> None:
        self._play = play
        self._backend = backend
        self._stage = stage
        self._work = [work for work in stage.work if isinstance(work, Arrive)]
        ahead = self._work and backend.pool_bytes is not None and len(play.batches) > 1
        self._thread = UploadThread() if ahead else None
        self._begun: dict[tuple[Arrive, int], Future[Buffer]] = {}

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._play.host.abandon()  # or the thread might wait for what never comes
        if self._thread is not None:
            for upload in self._begun.values():
                upload.cancel()
            self._thread.end()

    def begin(self, micro_batch: int) -> None:
        """Have this micro-batch's uploads begun, and those of the next one."""
        if self._thread is None:
            return
        for number in range(micro_batch, min(micro_batch + 2, len(self._play.batches))):
            for work in self._work:
                if (work, number) not in self._begun:
                    self._begun[work, number] = self._thread.submit(self._upload, work, number)

    def take(self, work: Arrive, micro_batch: int) -> Buffer:
        if self._thread is None:
            return self._upload(work, micro_batch)
        return self._begun.pop((work, micro_batch)).result()

    def _upload(self, work: Arrive, micro_batch: int) -> Buffer:
        ahead = nullcontext() if self._thread is None else self._play.clock.lane(f"link {self._stage.device}")
        with ahead:
            return self._backend.upload(self._play.value_of(work, micro_batch), "activations")
