"""One optimizer step: the check of each loss, and updates that start while backward goes on below.

The loss of a step is the mean over all its label tokens, whatever micro-batch they are in: their number is known before
the first one, and every gradient is scaled by it from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphcache.errors import GraphcacheError
from trainer.data.corpus import Batch
from trainer.optim.base import Optimizer, UpdateReport
from trainer.optim.clip import NonFiniteGradientError
from trainer.step.clock import Clock
from trainer.step.network import Network
from trainer.step.play import StepPlay
from trainer.step.schedule import Update

# Batches that an error names before it says how many more there are.
NAMED = 4


class NonFiniteLossError(GraphcacheError):
    """The loss of a micro-batch is not a number, or infinite: no update was made of it."""

    name = "non-finite-loss"


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """loss: mean over the step's `label_tokens`; tokens: all that went through the model, padding too."""

    loss: float
    tokens: int
    label_tokens: int
    update: UpdateReport
    clock: Clock


def run_step(
    network: Network, optimizer: Optimizer, batches: Sequence[Batch], *, step: int, lr: float, clock: Clock
) -> StepResult:
    """Step number `step` (from 1). Raises NonFiniteLossError, and with a clip norm NonFiniteGradientError, before any
    weight is changed."""
    label_tokens = sum(batch.label_tokens for batch in batches)
    total = 0.0

    def on_loss(number: int, loss: float) -> None:
        nonlocal total
        _check_finite(loss, step, batches[number])
        total += loss
        if number == len(batches) - 1:
            optimizer.begin_step(step, lr)

    def on_final(update: Update) -> None:
        with clock.phase("gradients"):
            optimizer.submit(network.unit_of(update))

    StepPlay(network, batches, scale=1.0 / label_tokens, clock=clock, on_loss=on_loss, on_final=on_final).run()
    with clock.phase("update_wait"):
        try:
            update = optimizer.finish_step()
        except NonFiniteGradientError as error:
            where = f"step {step}, {_where(batches)}"
            raise NonFiniteGradientError(f"{error.message} in {where}", hint=error.hint) from error
    tokens = sum(batch.tokens.numel() for batch in batches)
    return StepResult(loss=total / label_tokens, tokens=tokens, label_tokens=label_tokens, update=update, clock=clock)


def _where(batches: Sequence[Batch]) -> str:
    named = "; ".join(batch.where for batch in batches[:NAMED])
    return named + (f"; and {len(batches) - NAMED} more" if len(batches) > NAMED else "")


def _check_finite(loss: float, step: int, batch: Batch) -> None:
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the loss of step {step} is {loss} on {batch.where}",
            hint="the weights are as they were before the step; look at that part of the data, or lower --lr",
        )
