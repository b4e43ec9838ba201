from __future__ import annotations

from pathlib import Path

import pytest
import transformers  # noqa: F401  # small files are tokenized in a process that has it, not in one of their own

from tests.support.tiny import LLAMA, QWEN2, write_checkpoint
from tests.trainer.runs import write_data


@pytest.fixture(scope="session")
def llama(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), LLAMA)


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen2"), QWEN2)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "pairs.jsonl")
