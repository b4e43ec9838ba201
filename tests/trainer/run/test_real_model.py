"""SmolLM2-135M itself: the first loss, and what its checkpoints are worth to transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.real_checkpoint import real_checkpoint
from tests.support.real_text import write_text
from tests.trainer.runs import batches_of, corpus_of, losses, train, whole_batch_loss
from trainer.checkpoint.folder import newest
from trainer.config import RunConfig

pytestmark = pytest.mark.stress


def transformers_loss(model, batches) -> float:
    with torch.no_grad():
        return whole_batch_loss(AutoModelForCausalLM.from_pretrained(model), batches).item()


def test_first_loss_and_a_checkpoints_loss_are_those_of_transformers(tmp_path):
    data = write_text(tmp_path / "text.txt")
    config = RunConfig(
        model=real_checkpoint(), data=data, out=tmp_path / "run", steps=2, accum=2, seq=64, save_every=1, lr=1e-5
    )
    first, second = losses(train(config))
    corpus = corpus_of(config)
    assert first == pytest.approx(transformers_loss(config.model, batches_of(config, corpus, 0)), rel=5e-3)
    saved = config.out / "checkpoints" / "step-00000001"
    assert second == pytest.approx(transformers_loss(saved, batches_of(config, corpus, 1)), rel=5e-3)
    assert newest(config.out / "checkpoints").step == 2
    assert (
        AutoTokenizer.from_pretrained(saved).chat_template == AutoTokenizer.from_pretrained(config.model).chat_template
    )
