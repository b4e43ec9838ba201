"""Columns, units and escapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.render import emit_facts, emit_json, emit_table
from graphcache.process.shown import bytes_text, printable, secs_text


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


TERMINAL = """
import fcntl, os, pty, struct, sys, termios
def child():
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 25, int(sys.argv[1]), 0, 0))
    from cli.render import emit_table
    emit_table(("key", "words", "bytes"), [("0123456789ab", "[bold]x " + 8 * "word ", "1,000,000")], right=("bytes",))
pid, fd = pty.fork()
if pid == 0:
    child()
    sys.stdout.flush()
    os._exit(0)
try:
    while data := os.read(fd, 1024):
        sys.stdout.write(data.decode())
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def on_terminal(columns: int) -> str:
    """A table as a pseudo-terminal of so many columns shows it."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", TERMINAL, str(columns)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_terminal_gets_the_same_cells() -> None:
    """By rich; markup in a cell is text."""
    shown = on_terminal(100)
    assert "[bold]x" in shown
    assert "1,000,000" in shown


@pytest.mark.parametrize("columns", [20, 30, 40, 60])
def test_a_narrow_terminal_shows_keys_and_numbers_whole(columns: int) -> None:
    shown = on_terminal(columns)
    assert "0123456789ab" in shown
    assert "1,000,000" in shown
    assert "word" in shown
