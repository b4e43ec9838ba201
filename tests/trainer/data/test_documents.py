from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny import SPECIAL, TEMPLATE
from trainer.data import files
from trainer.data.chat import ChatTemplate
from trainer.data.conversation import Conversation
from trainer.data.documents import Reader
from trainer.data.errors import ChatTemplateError, DataError
from trainer.data.files import raw_records
from trainer.data.turns import TurnFinder


def finder(source, special=SPECIAL):
    return TurnFinder(ChatTemplate(source, {"eos_token": SPECIAL[0]}), special)


def documents(tmp_path, text, name="data.jsonl", source=TEMPLATE):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(Reader(finder(source)).documents(path))


def rendered(source, messages):
    return finder(source).render(Conversation(messages=messages, trained=[m["role"] == "assistant" for m in messages]))


def answers(document):
    return [document.text[begin:end] for begin, end in document.spans]


def test_plain_text_is_one_document_without_its_byte_order_mark(tmp_path):
    (document,) = documents(tmp_path, "\ufeffone\n\ntwo\n", "data.txt")
    assert (document.line, document.text, document.spans) == (1, "one\n\ntwo\n", None)


def test_a_line_of_jsonl_is_a_document_and_blank_lines_are_none(tmp_path):
    found = documents(tmp_path, '{"text": "a", "source": 7}\n\n  \n{"text": "b"}')
    assert [(d.line, d.text) for d in found] == [(1, "a"), (4, "b")]


@pytest.mark.parametrize("name", ["data.json", "data.ndjson", "DATA.JSONL"])
def test_a_json_file_is_read_by_lines_and_never_as_plain_text(tmp_path, name):
    assert [d.text for d in documents(tmp_path, '{"text": "a"}\n{"text": "b"}\n', name)] == ["a", "b"]
    for whole in ('[{"text": "a"}, {"text": "b"}]', '[\n  {"text": "a"},\n{"text": "b"}\n]\n'):
        assert [(d.line, d.text) for d in documents(tmp_path, whole, name)] == [(1, "a"), (2, "b")]
    with pytest.raises(DataError, match="not one JSON array") as raised:
        documents(tmp_path, '[{"text": "a"}\n{"text": "b"}]', name)
    assert "one array" in raised.value.hint


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@given(st.lists(JSON_VALUES), st.sampled_from([None, 0, 3, "\t"]), st.booleans(), st.integers(1, 40))
@settings(max_examples=40)
def test_an_array_has_the_items_that_json_reads_in_it(items, indent, ascii_only, block_bytes):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block_bytes)
        path = Path(folder, "data.json")
        path.write_text("\ufeff \r\n" + json.dumps(items, indent=indent, ensure_ascii=ascii_only) + "\r\n")
        found = list(raw_records(path))
    assert [number for number, _ in found] == list(range(1, len(items) + 1))
    assert [json.loads(raw) for _, raw in found] == items


@pytest.mark.parametrize(
    "text", ["[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1] 2", "[1],", "[[1]", "[1]\u00a0", '["a]', "[1\u00a0]"]
)
def test_an_array_that_is_none_is_an_error(tmp_path, text):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DataError, match="not one JSON array"):
        list(raw_records(path))


def test_an_array_is_read_as_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 14)
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"messages": [{"role": "user", "content": f"{n}"}] * 4} for n in range(5_000)]))
    tracemalloc.start()
    try:
        assert sum(1 for _ in raw_records(path)) == 5_000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 700_000
    assert peak_bytes < 150_000


def test_only_the_completion_counts(tmp_path):
    (document,) = documents(tmp_path, '{"prompt": "2+2=", "completion": "4"}')
    assert (document.text, answers(document)) == ("2+2=4", ["4"])


def test_only_the_assistants_turns_count(tmp_path):
    turns = [("system", "s"), ("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (document,) = documents(tmp_path, json.dumps({"messages": messages}))
    assert document.complete
    assert answers(document) == ["a1<|end|>\n", "a2<|end|>\n"]
    assert document.text.count("<|turn|>") == 5


def test_parts_of_text_are_joined(tmp_path):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    (document,) = documents(tmp_path, json.dumps({"messages": messages}))
    assert document.text == "<|turn|>user\none two<|end|>\n<|turn|>assistant\none two<|end|>\n"
    assert answers(document) == ["one two<|end|>\n"]


PARTS = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}"


@pytest.mark.parametrize("written", [PARTS, EITHER, "{{ m.content }}"])
def test_a_template_gets_contents_as_it_takes_them(written):
    source = "{% for m in messages %}<{{ m.role }}>" + written + "</s>{% endfor %}"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    for content in (parts, "one two"):
        text, spans = rendered(
            source, [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        )
        assert text == "<user>one two</s><assistant>one two</s>"
        assert [text[begin:end] for begin, end in spans] == ["<assistant>one two</s>"]


def test_a_turn_of_tool_calls_needs_no_content(tmp_path):
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    written = "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}"
    source = "{% for m in messages %}[" + written + "]{% endfor %}"
    for turn in (calls, {name: value for name, value in calls.items() if name != "content"}):
        line = json.dumps({"messages": [{"role": "user", "content": "q"}, turn]})
        (document,) = documents(tmp_path, line, source=source)
        assert document.text == "[q][f]"


@pytest.mark.parametrize(
    "content",
    [
        None,
        5,
        [],
        {"type": "text", "text": "a"},
        ["a"],
        [{"type": "text", "text": None}],
        [{"type": "image", "text": ""}],
    ],
)
def test_a_content_that_is_not_text_is_refused(tmp_path, content):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    with pytest.raises(DataError, match=r"data\.jsonl:1: message 1 has (null|a \w+) for its content"):
        documents(tmp_path, json.dumps({"messages": messages}))


def test_generation_marks_in_a_template_change_nothing():
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    text, spans = rendered(source, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    assert (text, spans) == ("[q]a", ((3, 4),))


def test_a_template_that_rewrites_earlier_turns_is_refused():
    source = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}-{% endif %}{% endfor %}"
    messages = [{"role": r, "content": r} for r in ("user", "assistant", "user")]
    with pytest.raises(ChatTemplateError, match="writes message 1 in another way"):
        rendered(source, messages)


def test_a_template_cannot_reach_out_of_its_sandbox():
    with pytest.raises(ChatTemplateError, match="refuses"):
        rendered("{{ ''.__class__.__mro__ }}", [{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10 ** 7) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ messages + 1 }}", "TypeError"),
    ],
)
def test_a_template_may_fail_in_any_way(source, fault):
    with pytest.raises(ChatTemplateError, match=fault):
        rendered(source, [{"role": "user", "content": ""}])


@pytest.mark.parametrize("source", ["{{" + "(" * 10**4, "{% for i in 'ab' %}" * 30 + "{% endfor %}" * 30])
def test_a_template_that_is_nested_too_deeply_is_an_error(source):
    with pytest.raises(ChatTemplateError, match=r"fails: RecursionError|fault in line|too many"):
        rendered(source, [{"role": "user", "content": ""}])


def test_a_broken_template_names_its_line():
    with pytest.raises(ChatTemplateError, match="line 2"):
        rendered("\n{% if %}", [{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("{", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        ('{"text": ' + "[" * 10**5 + "]" * 10**5 + "}", "nested too deeply"),
        ("[]", "a JSON list, not an object"),
        ("{}", "none of text, messages"),
        ('{"text": "a", "messages": []}', "has text and messages"),
        ('{"text": null}', "none of text, messages"),
        ('{"text": 5}', "text is a int, not text"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": "a"}', "no completion"),
        ('{"messages": []}', "not a list of at least one"),
        ('{"messages": [{"role": "user"}]}', "message 0 is not an object with a role and a content"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, fact):
    good = b'{"text": "good"}\n\n'
    with pytest.raises(DataError, match=rf"data\.jsonl:3: .*{fact}"):
        documents(tmp_path, good + (line.encode() if isinstance(line, str) else line))


def test_a_conversation_that_the_template_refuses_is_named_by_line(tmp_path):
    line = '{"messages": [{"role": "user", "content": "x"}]}\n'
    with pytest.raises(DataError, match=r"data\.jsonl:1: .*no system turn"):
        documents(tmp_path, line, source="{{ raise_exception('no system turn') }}")
    with pytest.raises(DataError, match=r"data\.jsonl:1: the checkpoint has no chat template"):
        documents(tmp_path, line, source=None)
    with pytest.raises(DataError, match="no chat template called default, only rag"):
        documents(tmp_path, line, source={"rag": TEMPLATE})


def test_text_that_is_not_utf8_names_the_line(tmp_path):
    with pytest.raises(DataError, match=r"data\.txt:3: not UTF-8"):
        documents(tmp_path, b"a\nb\n\xff\n", "data.txt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt cannot be read"):
        list(Reader(finder(TEMPLATE)).documents(tmp_path / "no.txt"))
