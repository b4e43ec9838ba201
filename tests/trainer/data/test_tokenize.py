from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers.processors import ByteLevel, RobertaProcessing, Sequence, TemplateProcessing
from transformers import AutoTokenizer

from tests.support.tiny import LLAMA, SPECIAL, TEMPLATE, byte_tokenizer, write_checkpoint
from trainer.data import blocks as blocks_module
from trainer.data import tokenize
from trainer.data.documents import Document
from trainer.data.errors import DataError
from trainer.data.tokenize import read_tokenizer
from trainer.data.tokens import Tokens

END, TURN = 256, 257
ADDED = [("<|end|>", END), ("<|turn|>", TURN)]
# How tokenizers end a text by themselves, and the ids that they put before it.
END_ADDING = [
    pytest.param(TemplateProcessing(single="$A <|end|>", special_tokens=ADDED), [], id="template"),
    pytest.param(
        Sequence([ByteLevel(), TemplateProcessing(single="<|turn|> $A <|end|>", special_tokens=ADDED)]),
        [TURN],
        id="sequence",
    ),
    pytest.param(RobertaProcessing(("<|end|>", END), ("<|turn|>", TURN)), [TURN], id="roberta"),
]


@pytest.fixture
def model(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"__type": "AddedToken", "content": SPECIAL[0]}})
    )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def tokens(model, *documents):
    return list(read_tokenizer(model).tokens(documents))


def joined(parts):
    return Tokens(
        parts[0].line, np.concatenate([part.ids for part in parts]), np.concatenate([part.counts for part in parts])
    )


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


def test_a_begin_of_text_alone_is_an_empty_document(model):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<|turn|> $A <|end|>", special_tokens=ADDED)
    tokenizer.save(str(model / "tokenizer.json"))
    (found,) = tokens(model, Document(1, ""))
    assert len(found.ids) == len(found.counts) == 0


@pytest.mark.parametrize(("post_processor", "begin"), END_ADDING)
def test_an_end_of_text_that_the_tokenizer_adds_counts_like_ours(model, post_processor, begin):
    documents = [
        Document(1, "abcde", ((3, 5),)),
        Document(2, "ab<|end|>", ((1, 9),)),
        Document(3, "ab<|end|>", ((9, 9),)),
        Document(4, "ab"),
        Document(5, "ab<|end|>"),
        Document(6, "ab", complete=True),
    ]
    ours = tokens(model, *documents)
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = post_processor
    tokenizer.save(str(model / "tokenizer.json"))
    theirs = tokens(model, *documents)
    for document, our, their in zip(documents, ours, theirs, strict=True):
        added = 0 if document.complete else len(begin)
        assert their.ids.tolist() == begin[:added] + our.ids.tolist()
        assert their.counts[added:].tolist()[1:] == our.counts.tolist()[1:]
    assert [t.counts[-3:].tolist() for t in theirs[:3]] == [[True] * 3, [False, True, True], [False, False, True]]


@pytest.mark.parametrize(("post_processor", "begin"), END_ADDING)
def test_blocks_of_a_long_text_have_one_begin_and_one_end(model, monkeypatch, post_processor, begin):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = post_processor
    tokenizer.save(str(model / "tokenizer.json"))
    text = "hello my\nfriend how\nare you\ntoday fine\n"
    (whole,) = tokens(model, Document(1, text))
    monkeypatch.setattr(blocks_module, "BLOCK_CHARS", 10)
    blocks = joined(tokens(model, Document(1, text)))
    assert blocks.ids.tolist() == whole.ids.tolist()
    assert blocks.ids.tolist().count(END) == 1
    assert blocks.counts.tolist() == whole.counts.tolist() == [False] + [True] * (len(begin) + len(text))


def test_another_token_that_the_tokenizer_ends_a_text_with_counts_before_ours(model):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="$A <|turn|>", special_tokens=ADDED)
    tokenizer.save(str(model / "tokenizer.json"))
    (found,) = tokens(model, Document(1, "abc", ((2, 3),)))
    assert found.ids[-2:].tolist() == [TURN, END]
    assert found.counts.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("settings", [None, {}, {"eos_token": None}])
@pytest.mark.parametrize(
    ("generation", "config", "end"),
    [
        ({"eos_token_id": [TURN, END]}, {"eos_token_id": END}, TURN),
        ({"eos_token_id": TURN}, None, TURN),
        ({"eos_token_id": []}, {"eos_token_id": END}, END),
        (None, {"eos_token_id": END}, END),
    ],
)
def test_without_a_name_texts_end_with_the_token_that_generation_stops_at(model, settings, generation, config, end):
    files = {"tokenizer_config.json": settings, "generation_config.json": generation, "config.json": config}
    for name, value in files.items():
        (model / name).unlink(missing_ok=True)
        if value is not None or name == "config.json":
            (model / name).write_text(json.dumps({"model_type": "llama"} | (value or {})))
    (model / "chat_template.jinja").write_text("{{ eos_token }}")
    tokenizer = read_tokenizer(model)
    (found,) = tokenizer.tokens([Document(1, "a")])
    assert found.ids.tolist()[1:] == [end]
    assert tokenizer.template.render([{"role": "user", "content": ""}]) == SPECIAL[end - END]


def test_a_text_needs_an_end_of_text_and_a_conversation_has_its_own(model):
    (model / "tokenizer_config.json").unlink()
    (model / "config.json").write_text('{"model_type": "llama", "eos_token_id": null}')
    (chat,) = tokens(model, Document(1, "a<|end|>", complete=True))
    assert chat.ids[-1] == END
    with pytest.raises(DataError, match="names no end-of-text token"):
        tokens(model, Document(1, "a"))


@pytest.mark.parametrize("value", [-1, 10**12, 319, "<|end|>", True, {}])
def test_an_end_of_text_that_is_no_token_is_an_error(model, value):
    (model / "tokenizer_config.json").write_text('{"eos_token": "<nope>"}')
    with pytest.raises(DataError, match=r"eos_token is '<nope>' in tokenizer_config\.json"):
        read_tokenizer(model)
    (model / "tokenizer_config.json").unlink()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": value}))
    with pytest.raises(DataError, match=r"eos_token_id is .* in config\.json, which is no token|field 'eos_token_id'"):
        read_tokenizer(model)


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
    monkeypatch.setattr(blocks_module, "BLOCK_CHARS", 50)
    monkeypatch.setattr(tokenize, "BATCH_DOCUMENTS", 3)
    before, *parts, after = tokens(model, Document(1, "x"), Document(2, text), Document(3, "y"))
    assert [part.begins for part in parts] == [True] + [False] * (len(parts) - 1)
    assert len(parts) > 20
    blocks = joined(parts)
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
    (found,) = tokenizer.tokens(tokenizer.reader().documents(tmp_path / "chat.jsonl"))
    theirs = AutoTokenizer.from_pretrained(model)
    assert found.ids.tolist() == theirs.apply_chat_template(messages, return_dict=False)
    assert counted(tokenizer.tokenizer, found) == "assistant says é2<|end|>\nassistant says é4<|end|>\n"
