"""What a record says is never dropped without a word: each test is one thing that was."""

from __future__ import annotations

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers.processors import TemplateProcessing

from tests.support.tiny import byte_tokenizer
from tests.trainer.data.families import FAMILIES, ONE, REASONED, TOOL, TOOLS, called, turns
from trainer.data.documents import Document
from trainer.data.errors import DataError
from trainer.data.tokenize import read_tokenizer

QUESTION = turns(("user", "Weather in Zürich?"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}

    def tokenizer(name, **more):
        if name not in found:
            found[name] = read_tokenizer(FAMILIES[name].write(tmp_path_factory.mktemp("family")))
        return found[name]

    return tokenizer


def document(tokenizer, record, *ignored):
    return tokenizer.reader(ignored).document("data:7", 7, json.dumps(record).encode())


def counted(found):
    return [found.text[begin:end] for begin, end in found.spans]


def test_tools_beside_messages_are_rendered_and_change_the_digest(made):
    tokenizer = made("llama-3.1")
    with_tools, without = document(tokenizer, ONE | {"tools": [TOOL]}), document(tokenizer, ONE)
    assert json.dumps(TOOL, indent=4, ensure_ascii=False) in with_tools.text
    assert "weather" not in without.text
    as_text = document(tokenizer, ONE | {"tools": json.dumps([TOOL])})
    assert as_text == with_tools
    for nothing in ([], None, "", "[]"):
        assert document(tokenizer, ONE | {"tools": nothing}) == without


def test_tools_under_a_template_without_tools_are_an_error_or_ignored(made):
    with pytest.raises(DataError, match="data:7: the chat template leaves out the tool weather") as raised:
        document(made("chatml"), ONE | {"tools": [TOOL]})
    assert "--ignore-fields tools" in raised.value.hint
    assert document(made("chatml"), ONE | {"tools": [TOOL]}, "tools") == document(made("chatml"), ONE)


def test_a_call_under_a_template_without_tools_is_no_word_none(made):
    for content in ({"content": None}, {}):
        with pytest.raises(DataError, match=r"leaves out tool_calls of message 1: 'weather'|refuses|fails"):
            document(made("chatml"), {"messages": [*QUESTION, called("Zürich", **content)]})


def test_arguments_as_json_text_are_decoded_once(made):
    call = called("Zürich")
    function = call["tool_calls"][0]["function"]
    text = {"name": "weather", "arguments": json.dumps(function["arguments"])}
    for name in ("qwen-2.5", "llama-3.1", "mistral-3"):
        asked = {"messages": [*QUESTION, call], "tools": [TOOL]}
        as_text = asked | {"messages": [*QUESTION, call | {"tool_calls": [{"type": "function", "function": text}]}]}
        bare = asked | {"messages": [*QUESTION, call | {"tool_calls": [text]}]}
        assert '"city": "Zürich", "days": 3' in counted(document(made(name), asked))[0]
        assert document(made(name), as_text) == document(made(name), bare) == document(made(name), asked)


def test_a_template_that_joins_arguments_as_text_gets_text(made, tmp_path):
    source = FAMILIES["qwen-2.5"].plain.replace("call.function.arguments}", "call.function.arguments + ''}")
    tokenizer = read_tokenizer(FAMILIES["qwen-2.5"].write(tmp_path, source))
    found = document(tokenizer, {"messages": [*QUESTION, called("Zürich")], "tools": [TOOL]})
    assert r"{\"city\": \"Zürich\", \"days\": 3}" in counted(found)[0]


def test_arguments_that_are_no_json_are_named(made):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{city"}}]}
    with pytest.raises(DataError, match="data:7: message 1: arguments of f is text that is not JSON"):
        document(made("qwen-2.5"), {"messages": [*QUESTION, call]})


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_given_to_the_template_under_every_name(made, name):
    answer = {"role": "assistant", "content": "4", name: "Two and two\nare four."}
    record = {"messages": [REASONED["messages"][0], answer]}
    assert document(made("qwen-3"), record) == document(made("qwen-3"), REASONED)
    assert counted(document(made("qwen-3"), record)) == ["<think>\nTwo and two\nare four.\n</think>\n\n4<|im_end|>\n"]


def test_documents_are_given_to_the_template(made, tmp_path):
    facts = [{"title": "Facts", "text": "Water is wet."}]
    with pytest.raises(DataError, match="leaves out documents"):
        document(made("chatml"), ONE | {"documents": facts})
    source = "{%- for d in documents -%}{{- d.title + ': ' + d.text -}}{%- endfor -%}" + FAMILIES["phi-4"].plain
    tokenizer = read_tokenizer(FAMILIES["phi-4"].write(tmp_path, source))
    assert document(tokenizer, ONE | {"documents": facts}).text.startswith("Facts: Water is wet.")


@pytest.mark.parametrize("mask", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"weight": 0, "train": False}])
def test_a_turn_that_is_not_to_count_is_masked(made, mask):
    messages = [*turns(("user", "a"), ("assistant", "b")), *turns(("user", "c"), ("assistant", "d"))]
    messages[1] |= mask
    for kept in ({}, {"weight": 1}, {"train": True}, {"weight": None}):
        found = document(made("chatml"), {"messages": [*messages[:3], messages[3] | kept]})
        assert counted(found) == ["d<|im_end|>\n"]


@pytest.mark.parametrize(
    ("turn", "fact"),
    [
        ({"role": "assistant", "content": "b", "weight": 0.5}, "weight is 0.5, and only 0 and 1"),
        ({"role": "assistant", "content": "b", "train": "no"}, "train is 'no', and only 0 and 1"),
        ({"role": "assistant", "content": "b", "weight": 1, "train": False}, "weight and train disagree"),
        ({"role": "user", "content": "b", "train": True}, "is to count, and only turns of the assistant can"),
        ({"role": "user", "content": "b", "weight": 1}, "is to count, and only turns of the assistant can"),
        ({"role": "assistant", "content": "b", "mask": True}, "has mask, which is not read"),
    ],
)
def test_what_a_turn_says_of_its_weight_is_understood_or_refused(made, turn, fact):
    with pytest.raises(DataError, match=f"data:7: message 0:? .*{fact}"):
        document(made("chatml"), {"messages": [turn]})


def test_system_beside_prompt_is_an_error_that_says_how_to_write_it(made):
    for other in ({"prompt": "a", "completion": "b"}, {"text": "a"}, ONE):
        with pytest.raises(DataError, match="data:7: has system beside") as raised:
            document(made("chatml"), other | {"system": "Be brief."})
        assert '{"role": "system", "content": "..."}' in raised.value.hint


@pytest.mark.parametrize(
    "field", ["rejected", "weight", "train", "label", "functions", "images", "history", "loss_mask"]
)
def test_a_field_that_is_not_read_is_named_unless_it_is_ignored(made, field):
    record = ONE | {field: 0, "id": 3, "source": "web", "my_score": 0.5}
    with pytest.raises(DataError, match=f"data:7: has {field} beside messages, which is not read") as raised:
        document(made("chatml"), record)
    assert raised.value.hint.endswith(f"--ignore-fields {field}")
    assert document(made("chatml"), record, field) == document(made("chatml"), ONE)


def test_a_turn_that_the_template_leaves_out_is_an_error(tmp_path):
    source = (
        "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- '[INST]' + m.content + '[/INST]' -}}"
        "{%- elif m.role == 'assistant' -%}{{- m.content + eos_token -}}{%- endif -%}{%- endfor -%}"
    )
    tokenizer = read_tokenizer(FAMILIES["mistral-1"].write(tmp_path, source))
    tool = {"role": "tool", "content": "forecast"}
    with pytest.raises(DataError, match="leaves out content of message 1: 'forecast'"):
        document(tokenizer, {"messages": [*QUESTION, tool]})


@pytest.mark.parametrize("begin", ["", "<|turn|>"])
@pytest.mark.parametrize("record", [{"text": "abc"}, {"prompt": "ab", "completion": "c"}, None])
def test_there_is_one_beginning_of_text(tmp_path, begin, record):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<|turn|> $A", special_tokens=[("<|turn|>", 257)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>", "bos_token": "<|turn|>"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    loaded = read_tokenizer(tmp_path)
    if record is None:
        (tmp_path / "data.txt").write_text(begin + "abc")
        (found,) = loaded.tokens(loaded.reader().documents(tmp_path / "data.txt"))
    else:
        first = next(iter(record))
        (found,) = loaded.tokens([document(loaded, record | {first: begin + record[first]})])
    assert found.ids.tolist()[0] == 257
    assert found.ids.tolist().count(257) == 1
    expected = [False, False, False, True, True] if record and "prompt" in record else [False, True, True, True, True]
    assert found.counts.tolist() == expected


def test_a_token_that_only_tokenizer_config_names_is_one_token(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tool = {"content": "<|tool|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    settings = {"eos_token": "<|end|>", "added_tokens_decoder": {"258": tool | {"single_word": False}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (found,) = read_tokenizer(tmp_path).tokens([Document(1, "a<|tool|>b")])
    assert found.ids.tolist()[1] == 258
    assert len(found.ids) == 4


@pytest.mark.parametrize("filter_", ["tojson(ensure_ascii=False)", "tojson(separators=(',', ':'))", "tojson(indent=2)"])
def test_filters_of_transformers_are_there(tmp_path, filter_):
    source = "{%- for m in messages -%}{{- m | " + filter_ + " -}}{%- endfor -%}"
    found = document(read_tokenizer(FAMILIES["phi-4"].write(tmp_path, source)), {"messages": turns(("user", "é<b>"))})
    options = {"tojson(separators=(',', ':'))": {"separators": (",", ":")}, "tojson(indent=2)": {"indent": 2}}
    expected = json.dumps({"role": "user", "content": "é<b>"}, ensure_ascii=False, **options.get(filter_, {}))
    assert found.text == expected


def test_named_templates_are_chosen_by_tools(tmp_path):
    folder = FAMILIES["qwen-2.5"].write(tmp_path)
    named = [
        {"name": "default", "template": FAMILIES["chatml"].plain},
        {"name": "tool_use", "template": FAMILIES["qwen-2.5"].plain},
    ]
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = read_tokenizer(folder)
    assert "You help." in document(tokenizer, ONE).text
    assert "weather" in document(tokenizer, TOOLS).text


SHAREGPT = {
    "system": "Be brief.",
    "conversations": [
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "hello"},
        {"from": "human", "value": "bye"},
        {"from": "gpt", "value": "see you", "weight": 0},
    ],
}


def test_sharegpt_records_are_conversations(made):
    messages = turns(("system", "Be brief."), ("user", "hi"), ("assistant", "hello"), ("user", "bye"))
    messages.append({"role": "assistant", "content": "see you", "weight": 0})
    assert document(made("chatml"), SHAREGPT) == document(made("chatml"), {"messages": messages})
    assert document(made("chatml"), {"conversations": messages}) == document(made("chatml"), {"messages": messages})
    calls = [
        {"from": "human", "value": "Weather in Zürich?"},
        {"from": "function_call", "value": json.dumps(called("Zürich")["tool_calls"][0]["function"])},
        {"from": "observation", "value": '{"sky": "clear"}'},
        {"from": "gpt", "value": "It is clear."},
    ]
    found = document(made("qwen-2.5"), {"conversations": calls, "tools": json.dumps([TOOL])})
    expected = document(made("qwen-2.5"), TOOLS | {"messages": TOOLS["messages"][:4]})
    assert (found.text, found.spans) == (expected.text, expected.spans)
    with pytest.raises(DataError, match="turn 0 is from 'narrator'"):
        document(made("chatml"), {"conversations": [{"from": "narrator", "value": "x"}]})
    with pytest.raises(DataError, match="has system twice"):
        document(made("chatml"), SHAREGPT | {"conversations": [{"from": "system", "value": "x"}]})


def test_alpaca_records_are_conversations(made):
    record = {"instruction": "Translate.", "input": "Guten Tag", "output": "Good day"}
    expected = {"messages": turns(("user", "Translate.\n\nGuten Tag"), ("assistant", "Good day"))}
    assert document(made("chatml"), record) == document(made("chatml"), expected)
    short = {"messages": turns(("user", "Translate."), ("assistant", "Good day"))}
    assert document(made("chatml"), record | {"input": ""}) == document(made("chatml"), short)
    with pytest.raises(DataError, match="has text and instruction") as raised:
        document(made("chatml"), record | {"text": "Below is an instruction"})
    assert "--ignore-fields text" in raised.value.hint
    assert document(made("chatml"), record | {"text": "Below"}, "text") == document(made("chatml"), expected)
    with pytest.raises(DataError, match="output is missing"):
        document(made("chatml"), {"instruction": "Translate."})


def test_prompt_and_completion_may_be_messages(made):
    first = turns(("user", "a"), ("assistant", "b"), ("user", "c"))
    found = document(made("chatml"), {"prompt": first, "completion": turns(("assistant", "d"))})
    assert counted(found) == ["d<|im_end|>\n"]
    with pytest.raises(DataError, match="prompt is a list of messages, and completion is not"):
        document(made("chatml"), {"prompt": first, "completion": "d"})


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.json.gz", "data.json", "data.parquet", "data.jsonl"])
def test_the_same_records_in_every_file_are_the_same_documents(made, tmp_path, name):
    records, path = [ONE, TOOLS, SHAREGPT | {"system": None}], tmp_path / name
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    if name.endswith(".parquet"):
        rows = [{"messages": r.get("messages"), "text": None} for r in [ONE, ONE]]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        records = [ONE, ONE]
    elif name == "data.json":
        path.write_text(json.dumps(records, indent=1))
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    found = list(made("qwen-2.5").reader().documents(path))
    assert [d.line for d in found] == list(range(1, len(records) + 1))
    assert [d.text for d in found] == [document(made("qwen-2.5"), r).text for r in records]


@pytest.mark.parametrize("name", ["data.txt", "data.jsonl", "data.json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_an_error(made, tmp_path, name, encoding):
    text = "some text\n" if name.endswith("txt") else '[{"text": "é"}]\n' if name.endswith("n") else '{"text": "é"}\n'
    (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=rf"{name}(:1)?: not text in UTF-8: it holds bytes that are 0"):
        list(made("chatml").reader().documents(tmp_path / name))


def test_nul_characters_are_an_error(made, tmp_path):
    (tmp_path / "data.txt").write_bytes(b"a\0b")
    with pytest.raises(DataError, match="bytes that are 0"):
        list(made("chatml").reader().documents(tmp_path / "data.txt"))
    with pytest.raises(DataError, match="data:7: character 1 of the text is NUL"):
        document(made("chatml"), {"text": "a\0b"})


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_an_error(made, tmp_path, name):
    (tmp_path / name).write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match=f"{name} cannot be read as"):
        list(made("chatml").reader().documents(tmp_path / name))
    (tmp_path / name).write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])
    with pytest.raises(DataError, match=f"{name} cannot be read as"):
        list(made("chatml").reader().documents(tmp_path / name))


@pytest.mark.parametrize(
    "line", ['{"text": "one", "text": "two"}', '{"messages": [{"role": "user", "role": "system"}]}']
)
def test_a_key_that_a_record_has_twice_is_an_error(made, line):
    """json.loads keeps the last one: the other would not be trained on, in silence."""
    with pytest.raises(DataError, match=r"data:7: the key '(text|role)' occurs twice in one object"):
        made("qwen-2.5").reader(()).document("data:7", 7, line.encode())


def test_a_key_that_arguments_have_twice_is_an_error(made):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1, "a": 2}'}}]}
    with pytest.raises(DataError, match="data:7: message 1: arguments of f: the key 'a' occurs twice"):
        document(made("qwen-2.5"), {"messages": [*QUESTION, call]})


@pytest.mark.parametrize("role", ["model", "gpt", "bot", "Assistant", "ASSISTANT", "User", "function_call"])
def test_a_role_that_would_not_be_trained_is_an_error(made, role):
    """Templates write any role; only the assistant's turns count, so such an answer would be left out."""
    for name in ("gemma", "chatml"):
        with pytest.raises(DataError, match=f"data:7: message 1 has the role '{role}'") as raised:
            document(made(name), {"messages": [*QUESTION, {"role": role, "content": "sunny"}]})
        assert raised.value.hint.startswith("write 'user'" if role == "User" else "write 'assistant'")
    found = document(made("chatml"), {"messages": [*turns(("developer", "d")), *QUESTION, *turns(("assistant", "a"))]})
    assert "<|im_start|>developer\nd<|im_end|>" in found.text


def test_a_content_that_is_null_says_so_and_a_call_of_the_old_form_is_named(made):
    with pytest.raises(DataError, match="data:7: message 1 has null for its content, not text"):
        document(made("chatml"), {"messages": [*QUESTION, {"role": "assistant", "content": None}]})
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    with pytest.raises(DataError, match="data:7: message 1 has function_call, which is not read"):
        document(made("chatml"), {"messages": [*QUESTION, call]})


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"])
def test_what_is_no_variable_of_a_template_cannot_be_given_as_one(made, name):
    for given in ({name: []}, json.dumps({name: []})):
        with pytest.raises(DataError, match=f"data:7: chat_template_kwargs gives {name}, which is no variable"):
            document(made("smollm-3"), ONE | {"chat_template_kwargs": given})
    as_text = document(made("smollm-3"), ONE | {"chat_template_kwargs": '{"enable_thinking": false}'})
    assert as_text == document(made("smollm-3"), ONE | {"chat_template_kwargs": {"enable_thinking": False}})


def test_a_null_that_parquet_puts_where_there_is_no_field_is_not_trained(made, tmp_path):
    """Two tools, or calls, of different fields in one column: each gets those of the other, as null."""
    other = {"type": "function", "function": {"name": "time", "parameters": {"properties": {"zone": {"type": "s"}}}}}
    path, plain = tmp_path / "data.parquet", ONE["messages"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": plain, "tools": [TOOL, other]}]), path)
    with pytest.raises(DataError, match=r"data\.parquet:1: tools has null for function\.parameters\.properties\.zone"):
        list(made("qwen-2.5").reader().documents(path))
    calls = [
        [*QUESTION, called("Zürich")],
        [*QUESTION, {"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": {"zone": 1}}}]}],
    ]
    rows = [{"messages": messages} for messages in calls]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(DataError, match=r"data\.parquet:1: tool_calls has null for function\.arguments\.zone"):
        list(made("qwen-2.5").reader().documents(path))
    rows = [{"messages": calls[0], "tools": [TOOL]}, {"messages": plain, "tools": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = list(made("qwen-2.5").reader().documents(path))
    assert [d.text for d in found] == [document(made("qwen-2.5"), row).text for row in rows]
    as_text = [{"messages": plain, "tools": json.dumps([TOOL, other])}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(as_text), path)
    assert '"zone"' in next(iter(made("qwen-2.5").reader().documents(path))).text
