"""The host's AdamW, gradient and weight in bfloat16, against DeepSpeed's and against what the memory allows.

DeepSpeed comes from the folder in GRAPHCACHE_BENCH_DEEPSPEED (`./dev bench` fills one). Without it torch's own fused
AdamW with the same casts stands in, and the line says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from tests.bench.measure import Result, paired, timed
from trainer.optim.base import AdamState
from trainer.optim.host import adamw_
from trainer.optim.offload import JOB_ELEMENTS
from trainer.optim.scalars import AdamSettings, StepScalars
from trainer.optim.workers import Workers

ELEMENTS = 64 << 20
# Read and written a parameter, by ours and by torch's on float32 alone: master and moments twice, and a gradient and
# a weight of two bytes each, or one gradient of four.
BYTES = 28
THREADS = 2
ROUNDS = 9
LR, BETAS, EPS, DECAY = 1e-5, (0.9, 0.999), 1e-8, 0.01


def measure() -> list[Result]:
    """Medians of interleaved calls in one process, two threads each, huge pages for all, as in a run."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read at torch's first allocation
    torch.set_num_threads(THREADS)
    random = torch.Generator().manual_seed(0)
    gradient = torch.randn(ELEMENTS, generator=random).to(torch.bfloat16)
    workers = Workers(THREADS)
    try:
        ours = _ours(workers, gradient)
        name, theirs = _casting(gradient)
        our_secs, casting_secs = paired(lambda: timed(ours), lambda: timed(theirs), ROUNDS)
        _, fused = _fused(gradient.float())
        ours_again, fused_secs = paired(lambda: timed(ours), lambda: timed(fused), ROUNDS)
    finally:
        workers.close()
    return [
        Result(
            f"host AdamW / {name} with casts, parameters per second",
            casting_secs / our_secs,
            2.0,
            False,
            f"{ELEMENTS / our_secs / 1e9:.2f} against {ELEMENTS / casting_secs / 1e9:.2f} G/s",
        ),
        Result(
            "host AdamW / torch's fused on float32 alone, bytes per second",
            fused_secs / ours_again,
            0.8,
            False,
            f"{ELEMENTS * BYTES / ours_again / 1e9:.0f} against {ELEMENTS * BYTES / fused_secs / 1e9:.0f} GB/s",
        ),
    ]


def _ours(workers: Workers, gradient: Tensor) -> Callable[[], object]:
    """As in a run: the worker threads, jobs of the size that the offload cuts."""
    state = AdamState(*(torch.zeros(ELEMENTS) for _ in range(3)))
    weight = torch.empty_like(gradient)
    scalars = StepScalars.at(10, LR, AdamSettings(*BETAS, EPS, DECAY), decays=True).tensor()

    def job(begin: int) -> Callable[[], None]:
        part = slice(begin, begin + JOB_ELEMENTS)
        own = AdamState(state.master[part], state.exp_avg[part], state.exp_avg_sq[part])
        return lambda: adamw_(own, gradient[part], weight[part], scalars)

    jobs = [job(begin) for begin in range(0, ELEMENTS, JOB_ELEMENTS)]

    def step() -> None:
        for each in jobs:
            workers.submit(each)
        workers.wait()

    return step


def _casting(gradient: Tensor) -> tuple[str, Callable[[], object]]:
    """An optimizer of float32 with the casts around it that a bfloat16 gradient and weight need, and its name."""
    wide, weight = torch.empty(ELEMENTS), torch.empty_like(gradient)
    name, parameter, update = _deepspeed(wide) or ("torch's fused (no DeepSpeed here)", *_fused(wide))

    def step() -> None:
        wide.copy_(gradient)
        update()
        weight.copy_(parameter)

    return name, step


def _deepspeed(gradient: Tensor) -> tuple[str, Tensor, Callable[[], object]] | None:
    folder = os.environ.get("GRAPHCACHE_BENCH_DEEPSPEED")
    if not folder:
        return None
    sys.path.append(folder)
    os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{folder}/built")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
    parameter.grad = gradient
    optimizer = DeepSpeedCPUAdam(
        [parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fp32_optimizer_states=True
    )
    return "DeepSpeedCPUAdam", parameter.data, optimizer.step


def _fused(gradient: Tensor) -> tuple[Tensor, Callable[[], object]]:
    parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
    parameter.grad = gradient
    optimizer = torch.optim.AdamW([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    return parameter.data, optimizer.step
