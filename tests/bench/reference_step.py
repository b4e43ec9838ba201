"""The reference training step, in a process of its own: transformers with gradient checkpointing and fused AdamW.

    python -m tests.bench.reference_step MODEL_DIR STEPS SEQ THREADS

Float32 parameters and optimizer state under bfloat16 autocast: the same precision of master weight, moments and
products as the trainer's. On a CPU where bfloat16 would take minutes a step, all is float32. Prints one JSON line: the
median seconds of a step after the first, the peak memory, the losses.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from tests.bench.measure import peak_rss_bytes
from trainer.device.products import bfloat16_is_slow


def main(model_dir: str, steps: int, seq: int, threads: int) -> None:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    secs, losses = [], []
    for _ in range(steps):
        tokens = torch.randint(0, model.config.vocab_size, (1, seq), generator=generator)
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not bfloat16_is_slow()):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        secs.append(time.perf_counter() - started)
        losses.append(loss.item())
    print(json.dumps({"step_secs": statistics.median(secs[1:]), "peak_bytes": peak_rss_bytes(), "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
