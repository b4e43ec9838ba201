"""Small whole runs for tests: a model, data with uneven documents, settings, and the same training by transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from trainer.config import RunConfig
from trainer.data.corpus import IGNORED, Batch, Corpus
from trainer.data.kept_tokens import tokens_of
from trainer.run.start import run

SEQ = 32


def write_data(path: Path, documents: int = 60) -> Path:
    """Prompts and completions of 0 to 60 characters each: sequences with few labels, with many, and with none."""
    letters = random.Random(0)

    def text(longest: int) -> str:
        return "".join(letters.choice("abcdefgh é") for _ in range(letters.randrange(longest)))

    lines = [{"prompt": text(60), "completion": text(60)} for _ in range(documents)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def settings(model: Path, data: Path, out: Path, **others: Any) -> RunConfig:
    small = {"seq": SEQ, "lr": 1e-3, "dtype": "float32", "update_workers": 2, "steps": 4, "accum": 2}
    return RunConfig(model=model, data=data, out=out, **{**small, **others})


def train(config: RunConfig) -> list[dict[str, Any]]:
    """Run it; the records of all its steps."""
    run(config)
    return records(config.out)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def losses(found: Sequence[dict[str, Any]]) -> list[float]:
    return [record["loss"] for record in found]


def corpus_of(config: RunConfig) -> Corpus:
    return Corpus(tokens_of(config.data, config.model, (), None, print), config.seq)


def batches_of(config: RunConfig, corpus: Corpus, step: int) -> list[Batch]:
    """Of a step that counts from 0."""
    return corpus.step(step, seed=config.seed, micro_batch=config.micro_batch, accum=config.accum)


def whole_batch_loss(model: torch.nn.Module, batches: Sequence[Batch]) -> torch.Tensor:
    """Mean loss over all label tokens of a step, all sequences at once."""
    tokens, labels = torch.cat([b.tokens for b in batches]), torch.cat([b.labels for b in batches])
    logits = model(tokens, position_ids=_positions(batches), use_cache=False).logits.float()
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _positions(batches: Sequence[Batch]) -> torch.Tensor | None:
    """[sequences, SEQ] int64, from 0 in each document: transformers takes them for packed documents, which do not see
    each other. None for micro-batches of several sequences, whose documents do."""
    if len(batches[0].tokens) > 1:
        return None
    rows = []
    for batch in batches:
        seq = batch.tokens.shape[1]
        ends = [0, *batch.starts[0], seq]
        rows.append(torch.cat([torch.arange(end - begin) for begin, end in pairwise(ends)]))
    return torch.stack(rows)


def reference_losses(config: RunConfig) -> list[float]:
    """The same steps by transformers and torch.optim.AdamW, float32."""
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
    corpus, found = corpus_of(config), []
    for step in range(config.steps or 0):
        loss = whole_batch_loss(model, batches_of(config, corpus, step))
        optimizer.zero_grad()
        loss.backward()
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        found.append(loss.item())
    return found
