"""`python -m trainer data`: what is printed is what is trained."""

from __future__ import annotations

import json

import pytest

from tests.support.tiny import SPECIAL
from trainer.__main__ import main


@pytest.fixture
def records(tmp_path):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello \x1b[31m you"}]
    lines = [{"messages": chat}, {"text": ""}, {"prompt": "2+2=", "completion": "4"}, {"messages": chat[:1]}]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_counts_is_in_brackets_and_the_rest_is_not(llama, records, capsys):
    assert main(["data", "--model", str(llama), "--data", str(records), "--seq", "16", "--show", "9"]) == 0
    out = capsys.readouterr().out
    assert "-- line 1: 38 tokens, 17 count, sequences 0-2; partly in sequences in which nothing counts" in out
    assert "\n-- cut: sequence 2\n" in out
    assert "\\x1b" in out
    assert "\x1b" not in out
    assert "-- line 3: 6 tokens, 2 count, " in out
    assert f"[[4{SPECIAL[0]}]]" in out
    assert "; nothing of it counts\n" in out
    assert "data     1 documents in which nothing counts: no answer, or all masked\n" in out
    assert "data     empty documents: lines 2\n" in out


def test_json_has_the_same(llama, records, capsys):
    argv = ["data", "--model", str(llama), "--data", str(records), "--json"]
    assert main([*argv, "--show", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [d["line"] for d in found["documents"]] == [1, 3]
    assert "".join(s["text"] for s in found["documents"][1]["segments"]) == f"2+2=4{SPECIAL[0]}"
    assert [s["counts"] for s in found["documents"][1]["segments"]] == [False, True]
    assert found["empty_lines"] == [2]
    assert found["documents_without_labels"] == 1
    assert found["data"]["documents"] == 3
    assert main([*argv, "--show", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == []


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (["--show", "-1"], "--show is -1"),
        (["--seq", "0"], "--seq is 0"),
        (["--model", "/none"], "--model /none: there is no such file or folder"),
        (["--data", "/none"], "--data /none: there is no such file or folder"),
    ],
)
def test_what_cannot_be_is_said(llama, records, capsys, more, fact):
    assert main(["data", "--model", str(llama), "--data", str(records), *more]) == 2
    assert fact in capsys.readouterr().err
