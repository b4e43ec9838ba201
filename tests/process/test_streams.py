"""Standard streams that are closed; full disks and readers that have gone are tested with each command."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, sys
from graphcache.process.streams import open_closed_streams
open_closed_streams()
print("an error", file=sys.stderr)
print("a fact")
file = os.open(os.devnull, os.O_RDONLY)
sys.stdout.flush()
sys.exit(file)
"""


@pytest.mark.parametrize(
    ("closed", "out", "error"),
    [("", "a fact\n", "an error\n"), ("2>&-", "a fact\n", ""), ("2>&- >&-", "", ""), ("<&- 2>&- >&-", "", "")],
)
def test_a_closed_stream_leads_nowhere_and_its_descriptor_is_no_files(closed: str, out: str, error: str) -> None:
    shell = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, CODE], capture_output=True, text=True, check=False
    )
    assert (shell.returncode, shell.stdout, shell.stderr) == (3, out, error)


def test_an_error_message_is_no_output_of_a_command_without_stderr() -> None:
    command = f"{sys.executable} -m cli.main shapes nothing 2>&-"
    shell = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (shell.returncode, shell.stdout) == (2, "")
