"""Parity with transformers: tokens, and what counts, for small templates with the traits of published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.trainer.data.families import FAMILIES, REASONED, TOOLS
from trainer.data.chat import TEMPLATE_DATE
from trainer.data.conversation import of_messages
from trainer.data.errors import ChatTemplateError, DataError
from trainer.data.tokenize import read_tokenizer

CASES = [(name, k) for name, family in FAMILIES.items() for k in range(len(family.records))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    @cache
    def folder(name: str, marked: bool) -> Path:
        family = FAMILIES[name]
        made = tmp_path_factory.mktemp("family")
        return family.write(made, family.marked if marked else None)

    return folder


@pytest.fixture(scope="module")
def ours(folders):
    return cache(lambda name, marked: read_tokenizer(folders(name, marked)))


@pytest.fixture(scope="module")
def theirs(folders):
    return cache(lambda name: AutoTokenizer.from_pretrained(folders(name, True)))


def tokens(tokenizer, record):
    document = tokenizer.reader().document("data:1", 1, json.dumps(record).encode())
    (found,) = tokenizer.tokens([document])
    return found


@pytest.mark.parametrize(("name", "k"), CASES)
def test_tokens_and_what_counts_are_those_of_transformers(ours, theirs, name, k, monkeypatch):
    record = FAMILIES[name].records[k]
    hold_the_clock(monkeypatch)
    expected = theirs(name).apply_chat_template(
        record["messages"],
        tools=record.get("tools"),
        return_assistant_tokens_mask=True,
        return_dict=True,
        **record.get("chat_template_kwargs", {}),
    )
    monkeypatch.undo()
    for marked in (False, True):
        found = tokens(ours(name, marked), record)
        assert found.ids.tolist() == expected["input_ids"]
        assert found.counts.astype(int).tolist()[1:] == expected["assistant_masks"][1:]


def hold_the_clock(monkeypatch):
    """transformers' own clock, for the side that is compared with."""
    import datetime

    from transformers.utils import chat_template_utils

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(TEMPLATE_DATE.year, TEMPLATE_DATE.month, TEMPLATE_DATE.day)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)


@pytest.mark.parametrize(("name", "k"), CASES)
def test_what_was_learned_of_a_template_changes_nothing(ours, name, k):
    finder, record = ours(name, False).finder, FAMILIES[name].records[k]
    conversation = of_messages("data:1", record, frozenset(), finder.template.source)
    try:
        slow = finder.render(conversation, fast=False)
    except ChatTemplateError:  # whose last answer is written in another way than the same one with more after it
        assert name in ("qwen-3", "qwen-3.5")
    else:
        assert finder.render(conversation) == slow


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_that_writes_no_end_of_a_turn_is_known(ours, name):
    for marked in (False, True):
        tokenizer = ours(name, marked)
        tokens(tokenizer, FAMILIES[name].records[0])
        assert tokenizer.finder.never_stops == FAMILIES[name].never_stops


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_that_is_masked_is_taken_out_and_nothing_else(ours, name):
    record = FAMILIES[name].records[1]
    last = len(record["messages"]) - 1
    for marked in (False, True):
        whole = tokens(ours(name, marked), record)
        parts = []
        for masked in [{"weight": 0}, {"train": False}], [{"train": False}, {"weight": 0}]:
            for i, mask in zip((1, last), masked, strict=True):
                messages = [m | mask if k == i else m for k, m in enumerate(record["messages"])]
                found = tokens(ours(name, marked), record | {"messages": messages})
                assert found.ids.tolist() == whole.ids.tolist()
                parts.append(found.counts)
        assert not (parts[0] & parts[1]).any()
        assert (parts[0] | parts[1]).tolist() == whole.counts.tolist()
        assert (parts[0].tolist(), parts[1].tolist()) == (parts[2].tolist(), parts[3].tolist())


def test_a_template_that_knows_a_call_by_a_content_that_is_none_gets_one(ours, folders):
    """DeepSeek's. transformers' `apply_chat_template` takes None out, so what is below it is compared with."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [dict(m) for m in TOOLS["messages"]]
    function = messages[1]["tool_calls"][0]["function"]
    function = function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    theirs = [*messages[:1], messages[1] | {"content": None, "tool_calls": [{"function": function}]}, *messages[2:]]
    source = FAMILIES["deepseek-v3"].marked
    (text,), ((*spans,),) = render_jinja_template(
        [theirs], chat_template=source, return_assistant_tokens_mask=True, bos_token="<begin>", eos_token="<end>"
    )
    for content in ({}, {"content": None}):
        record = {"messages": [*messages[:1], messages[1] | content, *messages[2:]]}
        for marked in (False, True):
            reader = ours("deepseek-v3", marked).reader()
            found = reader.document("data:1", 1, json.dumps(record).encode())
            assert found.text == text
            assert [found.text[begin:end] for begin, end in found.spans] == [text[begin:end] for begin, end in spans]


def test_reasoning_that_a_template_cuts_is_an_error(ours):
    """Of an earlier answer, as Qwen 3 does it; of every one where a template knows none."""
    later = [{"role": "user", "content": "and 3+3?"}, {"role": "assistant", "content": "6"}]
    for name in ("qwen-3", "qwen-3.5"):
        with pytest.raises(DataError, match=r"data:1: the chat template leaves out reasoning_content of message 1: 'T"):
            tokens(ours(name, False), {"messages": [*REASONED["messages"], *later]})
    masked = REASONED["messages"][1] | {"train": False}
    with pytest.raises(DataError, match="leaves out reasoning_content"):
        tokens(ours("chatml", False), REASONED)
    with pytest.raises(DataError, match="leaves out reasoning_content"):
        tokens(ours("chatml", False), {"messages": [REASONED["messages"][0], masked]})


def test_a_thought_within_the_content_is_not_cut_in_silence(ours):
    thought = {"role": "assistant", "content": "<think>two and two</think>4"}
    record = {"messages": [REASONED["messages"][0], thought]}
    with pytest.raises(DataError, match="leaves out the thought of message 1: 'two and two'"):
        tokens(ours("deepseek-r1", False), record)
    assert tokens(ours("chatml", False), record).counts.sum() > 20


def test_a_conversation_that_starts_with_the_assistant(ours):
    messages = [{"role": "assistant", "content": "Hello?"}, *FAMILIES["chatml"].records[0]["messages"]]
    with pytest.raises(DataError, match=r"data:1: the chat template refuses .*: roles must alternate user/assistant"):
        tokens(ours("mistral-1", False), {"messages": messages})
    for name in ("chatml", "always a header", "phi-4"):
        found = [tokens(ours(name, marked), {"messages": messages}) for marked in (False, True)]
        assert found[0].ids.tolist() == found[1].ids.tolist()
        assert found[0].counts.tolist() == found[1].counts.tolist()


def test_text_that_looks_like_the_template_does_not_move_what_counts(ours):
    """Headers and ends of turns spelled out in what people say."""
    for name in ("chatml", "llama-3", "phi-3"):
        family = FAMILIES[name]
        fake = family.special[0] + "assistant\nno" + family.special[1] + "\n<|end|>\n"
        messages = [m | {"content": m["content"] + fake} for m in family.records[1]["messages"]]
        found = [tokens(ours(name, marked), {"messages": messages}) for marked in (False, True)]
        assert found[0].counts.tolist() == found[1].counts.tolist()


def test_the_date_that_a_template_asks_for_is_fixed(ours):
    for name, shown in (("llama-3.1", "Today: 26 Jul 2024"), ("smollm-3", "Date: 26 July 2024")):
        tokenizer = ours(name, False)
        text = tokenizer.finder.render(
            of_messages("data:1", FAMILIES[name].records[0], frozenset(), tokenizer.template.source)
        )[0]
        assert shown in text
        assert tokenizer.template.tells_date
    assert not ours("chatml", False).template.tells_date


def test_options_of_a_template_are_given_to_it_and_others_refused(ours):
    family = FAMILIES["llama-3.1"]
    given = family.records[0] | {"chat_template_kwargs": {"date_string": "1 Jan 1970"}}
    document = ours("llama-3.1", False).reader().document("data:1", 1, json.dumps(given).encode())
    assert "Today: 1 Jan 1970" in document.text
    other = family.records[0] | {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(DataError, match="data:1: the chat template reads no enable_thinking"):
        tokens(ours("llama-3.1", False), other)
    ignoring = ours("llama-3.1", False).reader(["chat_template_kwargs"])
    assert ignoring.document("data:1", 1, json.dumps(other).encode()).text


def test_a_family_without_a_token_for_the_end_has_another_mask_where_it_is_given(folders, ours):
    """The twin of a family is held against it: a test that cannot fail would be no test."""
    family = FAMILIES["zephyr"]
    shifted = replace(
        family, template=family.template.replace("«G»{{- m.content", "{{- m.content[:1] -}}«G»{{- m.content[1:]")
    )
    made = shifted.write(folders("zephyr", True).parent / "shifted", shifted.marked)
    record = family.records[0]
    found = tokens(
        read_tokenizer(made), record | {"messages": [record["messages"][0], {"role": "assistant", "content": ""}]}
    )
    assert found.counts.any()
