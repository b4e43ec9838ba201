"""Activations on the host: what one stage has sent and another takes."""

from __future__ import annotations

import threading

from torch import Tensor

from trainer.step.schedule import Activation


class AbandonedError(Exception):
    """Somebody else's error has ended the step; it is that one that counts."""


class HostActivations:
    """By activation and micro-batch. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[tuple[Activation, int], Tensor] = {}
        self._abandoned = False

    def put(self, what: Activation, micro_batch: int, value: Tensor) -> None:
        with self._changed:
            self._values[what, micro_batch] = value
            self._changed.notify_all()

    def get(self, what: Activation, micro_batch: int, *, keeps: bool) -> Tensor:
        """Waits until it is there; it stays there if the caller `keeps` it. Raises AbandonedError."""
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or (what, micro_batch) in self._values)
            if self._abandoned:
                raise AbandonedError
            return self._values[what, micro_batch] if keeps else self._values.pop((what, micro_batch))

    def abandon(self) -> None:
        """Nobody waits any longer."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
