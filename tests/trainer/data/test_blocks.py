"""Blocks of a long text have the tokens of the whole, for the kinds of tokenizers that Llama and Qwen2 have."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from trainer.data import blocks, files
from trainer.data.documents import Document
from trainer.data.errors import DataError
from trainer.data.tokenize import read_tokenizer

PIECES = "a|bc|1|23| |  |\n|\n\n|\r\n|\t|.|.\n|é|你|😀|'s|\u00a0|<~end~>".split("|")  # noqa: SIM905
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def gpt2(tokenizer):
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def llama3(tokenizer):
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def qwen2(tokenizer):
    llama3(tokenizer)
    tokenizer.normalizer = normalizers.NFC()


def llama2(tokenizer):
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def metaspace(tokenizer):
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)


@pytest.fixture(scope="module", params=[gpt2, llama3, qwen2, llama2, metaspace])
def made(request, tmp_path_factory):
    """Trained on text of the pieces, so that newlines and spaces are merged as far as the pre-tokenizer lets them."""
    bytes_by_name = request.param in (llama2, metaspace)
    tokenizer = Tokenizer(models.BPE(byte_fallback=bytes_by_name))
    request.param(tokenizer)
    choose = random.Random(0)
    text = ["".join(choose.choices(PIECES, k=400)) for _ in range(20)]
    if bytes_by_name:  # as in Llama 2, where a newline is a byte and is never merged
        text = [line for whole in text for line in whole.replace("\r", "\n").split("\n")]
        special = ["<~end~>", *(f"<0x{byte:02X}>" for byte in range(256))]
    else:
        special = ["<~end~>"]
    alphabet = [] if bytes_by_name else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(text, trainer)
    folder = tmp_path_factory.mktemp(request.param.__name__)
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = whole["added_tokens"][:1]  # bytes are tokens, and none of their names in a text
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    settings_ = {"eos_token": "<~end~>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return read_tokenizer(folder), folder


def ids(tokenizer, documents):
    return np.concatenate([part.ids for part in tokenizer.tokens(documents)]).tolist()


@given(st.lists(st.sampled_from(PIECES), max_size=200).map("".join), st.integers(1, 30))
@settings(max_examples=150)
def test_blocks_have_the_tokens_of_the_whole(made, text, size):
    tokenizer, folder = made
    whole = ids(tokenizer, [Document(1, text)])
    path = folder / "data.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_CHARS", size)
        assert "".join(block.text for block in blocks.blocks(text)) == text
        assert ids(tokenizer, [Document(1, text)]) == whole
        patch.setattr(files, "BLOCK_BYTES", size)
        assert ids(tokenizer, tokenizer.reader().documents(path)) == whole


def test_a_text_is_read_in_blocks_that_end_with_lines(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("\ufeff" + "".join(f"line {i}\n\n" for i in range(200)))
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    found = [block for _, block in files.raw_records(path)]
    assert len(found) > 15
    assert [block.begins for block in found] == [True] + [False] * (len(found) - 1)
    assert all(block.after.startswith("line ") for block in found[:-1])
    assert found[-1].after == ""
    assert all(block.text.endswith("\n\n") for block in found)
    assert "\ufeff" + "".join(block.text for block in found) == path.read_text()


def test_what_is_no_text_is_named_by_its_line_in_whatever_block(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 7)
    path = tmp_path / "data.txt"
    path.write_bytes(b"one\ntwo\nthree\nfo\xc3\n")
    with pytest.raises(DataError, match=r"data\.txt:4: not UTF-8"):
        list(files.raw_records(path))
    path.write_bytes("one\ntwo\né".encode()[:-1])
    with pytest.raises(DataError, match=r"data\.txt:3: not UTF-8: unexpected end"):
        list(files.raw_records(path))
    path.write_bytes(b"one\ntwo\nthree\nfo\0ur\n")
    with pytest.raises(DataError, match="bytes that are 0"):
        list(files.raw_records(path))
