"""The host's AdamW, gradient and weight in bfloat16, against DeepSpeed's and against what the memory allows.

DeepSpeed comes from the folder in GRAPHCACHE_BENCH_DEEPSPEED (`./dev bench` fills one). Without it torch's own fused
AdamW with the same casts stands in, and the line says so. Each has the memory that its users have: ours huge pages, as
`python -m trainer` sees to, DeepSpeed what torch allocates by default. What stands for the memory's limit has huge
pages too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from tests.bench.measure import Result, paired, timed
from trainer.host.pages import empty
from trainer.optim.base import AdamState
from trainer.optim.host import adamw_
from trainer.optim.kernel import kernels
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
Step = Callable[[], object]


def measure() -> list[Result]:
    """Medians of interleaved calls in one process, two threads each."""
    torch.set_num_threads(THREADS)
    kernels()
    workers = Workers(THREADS)
    try:
        ours = _ours(workers)
        name, casting = _casting()
        ours_secs, casting_secs = paired(lambda: timed(ours), lambda: timed(casting), ROUNDS)
        fused = _fused_alone()
        ours_again_secs, fused_secs = paired(lambda: timed(ours), lambda: timed(fused), ROUNDS)
    finally:
        workers.close()
    return [
        Result(
            f"host AdamW / {name} with casts, parameters a second",
            casting_secs / ours_secs,
            2.0,
            False,
            f"{ELEMENTS / ours_secs / 1e9:.2f} against {ELEMENTS / casting_secs / 1e9:.2f} G/s",
        ),
        Result(
            "host AdamW / torch's fused on float32 alone, bytes a second",
            fused_secs / ours_again_secs,
            0.8,
            False,
            f"{ELEMENTS * BYTES / ours_again_secs / 1e9:.0f} against {ELEMENTS * BYTES / fused_secs / 1e9:.0f} GB/s",
        ),
    ]


def _zeros(dtype: torch.dtype) -> Tensor:
    """[ELEMENTS], in huge pages."""
    return empty((ELEMENTS,), dtype).zero_()


def _gradient() -> Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))


def _ours(workers: Workers) -> Step:
    """As in a run: the worker threads, jobs of the size that the offload cuts."""
    state = AdamState(*(_zeros(torch.float32) for _ in range(3)))
    gradient, weight = _zeros(torch.bfloat16).copy_(_gradient()), _zeros(torch.bfloat16)
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


def _casting() -> tuple[str, Step]:
    """An optimizer of float32 with the casts around it that a bfloat16 gradient and weight need, and its name."""
    parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
    parameter.grad = torch.zeros(ELEMENTS)
    gradient, weight = _gradient().to(torch.bfloat16), torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    name, update = _deepspeed(parameter) or ("torch's fused (no DeepSpeed here)", _fused(parameter))
    wide = parameter.grad

    def step() -> None:
        wide.copy_(gradient)
        update()
        weight.copy_(parameter.data)

    return name, step


def _deepspeed(parameter: torch.nn.Parameter) -> tuple[str, Step] | None:
    folder = os.environ.get("GRAPHCACHE_BENCH_DEEPSPEED")
    if not folder:
        return None
    sys.path.append(folder)
    os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{folder}/built")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam(
        [parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fp32_optimizer_states=True
    )
    return "DeepSpeedCPUAdam", optimizer.step


def _fused(parameter: torch.nn.Parameter) -> Step:
    return torch.optim.AdamW([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True).step


def _fused_alone() -> Step:
    """torch's fused AdamW on float32, all of it in huge pages."""
    parameter = torch.nn.Parameter(_zeros(torch.float32))
    parameter.grad = _zeros(torch.float32).copy_(_gradient())
    optimizer = torch.optim.AdamW([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    state = {"step": torch.tensor(0.0)} | {n: _zeros(torch.float32) for n in ("exp_avg", "exp_avg_sq")}
    optimizer.state[parameter] = state
    return optimizer.step
