"""Columns, units and escapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.render import bytes_text, emit_facts, emit_json, emit_table, printable, secs_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (16_060_522_496, "16.1 GB"),
        (999_600, "1 MB"),
        (2 * 10**15, "2e+03 TB"),
    ],
)
def test_bytes(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_seconds(secs: float, text: str) -> None:
    assert secs_text(secs) == text


def test_columns_are_aligned_and_carry_no_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    emit_table(("name", "bytes", "note"), [("a", "10", ""), ("long name", "9", "x")], right=("bytes",))
    assert capsys.readouterr().out == "name       bytes  note\na             10\nlong name      9  x\n"


def test_no_rows_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    emit_table(("name",), [])
    emit_facts([])
    assert capsys.readouterr().out == ""


def test_facts_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    emit_facts([("bytes", "1"), ("a name", "x\ny")])
    assert capsys.readouterr().out == "bytes   1\na name  x\\ny\n"


def test_json_is_sorted_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"b": "é", "a": [1]})
    assert capsys.readouterr().out == '{\n  "a": [\n    1\n  ],\n  "b": "\\u00e9"\n}\n'


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[0m\t\u202eé") == "a\\x1b[0m\\t\\u202eé"


def test_a_terminal_gets_the_same_cells(tmp_path: Path) -> None:
    """In a pseudo-terminal, so that rich is used; markup in a cell is text."""
    program = """
import os, pty, sys
def read(fd):
    data = os.read(fd, 1024)
    return data
code = "from cli.render import emit_table; emit_table(('name', 'bytes'), [('[bold]x', '1,000')], right=('bytes',))"
sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-c", code], read)))
"""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
    assert "[bold]x" in result.stdout
    assert "1,000" in result.stdout
