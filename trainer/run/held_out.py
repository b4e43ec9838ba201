"""A run's held-out data: when its loss is measured, what it was, and which checkpoint has the lowest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainer.config import RunConfig
from trainer.data.corpus import Corpus
from trainer.step.evaluate import held_out_loss
from trainer.step.network import Network

# Fields of a line of steps.jsonl, there after an evaluation only.
LOSS, SECS, DATA = "eval_loss", "eval_secs", "eval_data"


class HeldOut:
    """`losses` by step, those of earlier sessions on the same data included."""

    def __init__(self, corpus: Corpus, config: RunConfig, records: Iterable[Mapping[str, Any]]) -> None:
        self._corpus = corpus
        self._config = config
        self._digest = corpus.facts.digest
        found = list(records)
        self.losses: dict[int, float] = {r["step"]: r[LOSS] for r in found if r.get(DATA) == self._digest}
        # By step: whether its loss was measured, on these data or on others.
        self._measured = {r["step"]: LOSS in r for r in found}

    def is_due(self, step: int, last: int) -> bool:
        every = self._config.eval_every
        return step == last or (every is not None and step % every == 0)

    def owes(self, step: int, last: int) -> bool:
        """Whether a step was recorded without the loss that was due: its evaluation was interrupted."""
        return step <= last and self.is_due(step, last) and self._measured.get(step) is False

    def evaluate(self, network: Network, step: int, stopped: Callable[[], bool]) -> dict[str, Any]:
        """The evaluation's fields of the step's record; none when the run was asked to end meanwhile.

        Raises NonFiniteLossError.
        """
        began = time.perf_counter()
        loss = held_out_loss(network, self._corpus.in_order(self._config.micro_batch), step=step, stopped=stopped)
        self._measured[step] = loss is not None
        if loss is None:
            return {}
        self.losses[step] = loss
        return {LOSS: loss, SECS: round(time.perf_counter() - began, 6), DATA: self._digest}

    def best_of(self, steps: Iterable[int]) -> int | None:
        """The one of `steps` with the lowest loss, the earliest of equals; None when none was evaluated."""
        found = [(self.losses[step], step) for step in steps if step in self.losses]
        return min(found)[1] if found else None
