from __future__ import annotations

import json

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from tests.support.tiny import LLAMA, SPECIAL, TEMPLATE, byte_tokenizer, write_checkpoint
from trainer.data import tokenize
from trainer.data.documents import DataError, Document, read_documents
from trainer.data.tokenize import read_tokenizer

END = 256


@pytest.fixture
def model(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": SPECIAL[0]}}))
    return tmp_path


def tokens(model, *documents):
    return list(read_tokenizer(model).tokens(documents))


def counted(tokenizer, token):
    return tokenizer.decode([i for i, c in zip(token.ids, token.counts, strict=True) if c], skip_special_tokens=False)


def test_text_ends_with_the_end_of_text_and_its_first_token_does_not_count(model):
    (found,) = tokens(model, Document(1, "abc"))
    assert len(found.ids) == 4
    assert found.ids[-1] == END
    assert found.counts.tolist() == [False, True, True, True]


def test_documents_of_no_and_one_token(model):
    empty, one = tokens(model, Document(1, ""), Document(2, "a"))
    assert len(empty.ids) == 0
    assert one.counts.tolist() == [False, True]


def test_begin_of_text_comes_from_the_tokenizer_itself(model):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<|turn|> $A", special_tokens=[("<|turn|>", 257)])
    tokenizer.save(str(model / "tokenizer.json"))
    text, chat = tokens(model, Document(1, "a"), Document(2, "a", ((0, 1),), complete=True))
    assert text.ids.tolist()[0] == 257
    assert chat.ids.tolist()[0] != 257


def test_characters_of_several_tokens_count_whole(model):
    text = "q: é你好"
    (found,) = tokens(model, Document(1, text, ((3, len(text)),), complete=True))
    assert counted(read_tokenizer(model).tokenizer, found) == "é你好"


def test_spans_pick_tokens_in_order_of_the_file(model):
    documents = [
        Document(1, "ab", ((1, 2),)),
        Document(2, "<|turn|>xy<|end|>", ((8, 17),), complete=True),
        Document(3, "cd"),
        Document(4, "ef", ()),
    ]
    found = tokens(model, *documents)
    tokenizer = read_tokenizer(model).tokenizer
    assert [t.line for t in found] == [1, 2, 3, 4]
    assert [counted(tokenizer, t) for t in found] == ["b<|end|>", "xy<|end|>", "d<|end|>", "<|end|>"]


def test_a_long_text_is_tokenized_in_blocks_without_a_difference(model, monkeypatch):
    text = "".join(f"line {i}\n" for i in range(200)) + "tail"
    (whole,) = tokens(model, Document(1, text))
    monkeypatch.setattr(tokenize, "BLOCK_CHARS", 50)
    monkeypatch.setattr(tokenize, "BATCH_DOCUMENTS", 3)
    before, blocks, after = tokens(model, Document(1, "x"), Document(2, text), Document(3, "y"))
    assert blocks.ids.tolist() == whole.ids.tolist()
    assert blocks.counts.tolist() == whole.counts.tolist()
    assert (before.line, after.line) == (1, 3)


def test_the_template_beside_the_weights_wins(model):
    settings = {"eos_token": SPECIAL[0], "chat_template": [{"name": "default", "template": "old"}]}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    old = read_tokenizer(model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    new = read_tokenizer(model)
    assert (old.template.source, new.template.source) == ("old", TEMPLATE)
    assert old.digest != new.digest


def test_a_missing_or_broken_tokenizer_is_named(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.json is missing"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        read_tokenizer(tmp_path)


def test_a_chat_has_the_tokens_that_transformers_gives_it(tmp_path):
    model = write_checkpoint(tmp_path / "model", LLAMA)
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": f"{role} says é{i}"} for i, role in enumerate(roles)]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    tokenizer = read_tokenizer(model)
    (found,) = tokenizer.tokens(read_documents(tmp_path / "chat.jsonl", tokenizer.template))
    theirs = AutoTokenizer.from_pretrained(model)
    assert found.ids.tolist() == theirs.apply_chat_template(messages, return_dict=False)
    assert counted(tokenizer.tokenizer, found) == "assistant says é2<|end|>\nassistant says é4<|end|>\n"
