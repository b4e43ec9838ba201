"""What all commands share: help, examples, documentation, --json, exit codes, and imports that come late."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from cli import main as frame
from cli.main import COMMANDS, group, run
from cli.options import Command
from graphcache.errors import CorruptError, GraphcacheError, MissingGraphsError

ROOT = Path(__file__).parents[2]
# Those of other parts are here as soon as their modules are.
NAMES = [name for name, registered in COMMANDS.items() if find_spec(registered.target.partition(":")[0])]
DOCUMENTATION = (ROOT / "docs" / "commands.md").read_text()


def loaded(name: str) -> Command:
    command = group.get_command(click.Context(group), name)
    assert isinstance(command, Command)
    return command


def section(name: str) -> str:
    """What docs/commands.md says of a command."""
    found = re.search(rf"^## graphcache {name}\n(.*?)(?=^## |\Z)", DOCUMENTATION, re.DOTALL | re.MULTILINE)
    assert found, f"docs/commands.md has no section '## graphcache {name}'"
    return found[1]


# --- every command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_what_it_does(name: str) -> None:
    help_text = loaded(name).help
    assert help_text
    assert len(help_text.split("\n\n")[0]) > 20


@pytest.mark.parametrize("name", NAMES)
def test_the_group_says_of_a_command_what_it_says_itself(name: str) -> None:
    first = " ".join((loaded(name).help or "").split())
    assert first.startswith(COMMANDS[name].summary)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_help_text(name: str) -> None:
    options = [parameter for parameter in loaded(name).params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_a_machine_form(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in loaded(name).params)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_in_a_commands_help_can_be_typed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = loaded(name)
    assert command.examples
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for example in command.examples:
        assert f"  {example}\n" in shown
        program, first, *args = shlex.split(example)
        assert (program, first) == ("graphcache", name)
        command.make_context(name, args).close()


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_names_every_option(name: str) -> None:
    text = section(name)
    for parameter in loaded(name).params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[-1]}" in text, f"docs/commands.md says nothing of {name} {parameter.opts[-1]}"


def test_the_documentation_describes_no_command_that_is_not_there() -> None:
    assert set(re.findall(r"^## graphcache ([\w-]+)$", DOCUMENTATION, re.MULTILINE)) <= set(COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_shows_only_options_that_exist(name: str) -> None:
    known = {option for parameter in loaded(name).params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", section(name))) <= known


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_does_not_exist_is_an_error_of_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--no-such-option"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error[usage]: ")
    assert f"graphcache {name} --help" in captured.err


# --- imports ------------------------------------------------------------------------------------------------------


def modules_after(code: str) -> set[str]:
    """Names in sys.modules after `code` in a fresh interpreter."""
    code += "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import graphcache",
        "from cli.main import run; run(['--help'])",
        "from cli.main import run; run(['--version'])",
        *(f"from cli.main import run; run(['{name}', '--help'])" for name in NAMES),
    ],
)
def test_help_comes_without_heavy_imports(code: str) -> None:
    loaded_modules = modules_after(code)
    assert loaded_modules & {"torch", "rich", "numpy", "furiosa", "sqlite3", "diskcache", "safetensors"} == set()


def test_the_groups_help_imports_no_command() -> None:
    loaded_modules = modules_after("from cli.main import run; run(['--help'])")
    assert loaded_modules & {registered.target.partition(":")[0] for registered in COMMANDS.values()} == set()


# --- exit codes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch):
    """Registers a command `fake` that calls a function."""

    def register(function) -> None:
        command = Command("fake", callback=function, examples=["graphcache fake"])
        monkeypatch.setattr(frame, "FAKE", command, raising=False)
        monkeypatch.setitem(COMMANDS, "fake", frame.Registered("cli.main:FAKE", "A fake."))

    return register


def raising(error: BaseException):
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize("value", [None, 0, 1, 2])
def test_what_a_command_returns_is_the_exit_code(value: int | None, command_that) -> None:
    command_that(lambda: value)
    assert run(["fake"]) == (value or 0)


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (GraphcacheError("no", hint="do this"), 2, "error"),
        (CorruptError("no", hint="do this"), 1, "corrupt"),
        (MissingGraphsError("no", hint="do this"), 3, "missing-graphs"),
        (click.UsageError("no"), 2, "usage"),
        (click.FileError("file", "no"), 2, "usage"),
        (PermissionError(13, "Permission denied", "file"), 2, "os"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("division by zero"), 2, "internal"),
        (RecursionError("deep"), 2, "internal"),
        (MemoryError(), 2, "internal"),
    ],
)
def test_an_error_becomes_two_lines_or_json(
    error: BaseException, code: int, name: str, command_that, capsys: pytest.CaptureFixture[str]
) -> None:
    command_that(raising(error))
    assert run(["fake"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error[{name}]: ")
    assert captured.err.count("\n") <= 2
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_under_json_is_one_object_on_stdout(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no-such-model"
    assert run(["shapes", str(missing), *(["--json"] if as_json else [])]) == 2
    captured = capsys.readouterr()
    if as_json:
        assert captured.err == ""
        shown = json.loads(captured.out)
        assert shown["exit_code"] == 2
        assert shown["error"]["name"] == "checkpoint-not-found"
        assert shown["error"]["file"] == str(missing)
    else:
        assert captured.out == ""
        assert captured.err == f"error[checkpoint-not-found]: {missing}: does not exist\n  hint: check the path\n"


def test_usage_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shapes", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["error"]["name"] == "usage"
    assert "MODEL" in shown["error"]["message"]


def test_a_debug_run_shows_the_traceback(
    command_that, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHCACHE_DEBUG", "1")
    command_that(raising(ZeroDivisionError("division by zero")))
    assert run(["fake"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_an_unknown_command_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shaps"]) == 2
    assert "No such command 'shaps'" in capsys.readouterr().err


def test_an_error_shows_control_characters_escaped(command_that, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(raising(GraphcacheError("tensor \x1b[31m\n\udcff")))
    assert run(["fake"]) == 2
    assert capsys.readouterr().err == "error[error]: tensor \\x1b[31m\\n\\udcff\n"


def test_each_line_of_an_error_is_escaped_by_itself(command_that, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(raising(GraphcacheError("2 things", details=["  one\x1b", "  two\n  hint: none"], hint="do this")))
    assert run(["fake"]) == 2
    assert capsys.readouterr().err == "error[error]: 2 things\n  one\\x1b\n  two\\n  hint: none\n  hint: do this\n"


def test_output_that_a_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch, command_that) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    command_that(lambda: print("é"))
    assert run(["fake"]) == 0
    assert stream.buffer.getvalue() == b"\\xe9\n"


def process(code: str, **options) -> subprocess.Popen:
    """A process whose `fake` command runs `code`."""
    program = f"""
import os, signal, sys, time
import cli.main as frame
# As in the foreground of a terminal: what a shell starts in the background ignores SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
from cli.options import Command
def fake():
{"".join(f"    {line}" for line in code.strip().splitlines(keepends=True))}
frame.FAKE = Command("fake", callback=fake, examples=[])
frame.COMMANDS["fake"] = frame.Registered("cli.main:FAKE", "A fake.")
sys.exit(frame.run(["fake", *sys.argv[1:]]))
"""
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, stderr=subprocess.PIPE, **options)


def test_a_reader_that_has_gone_is_no_error_message() -> None:
    read_end, write_end = os.pipe()
    running = process("for i in range(100000): print('line', i)", stdout=write_end)
    os.close(write_end)
    os.read(read_end, 100)
    os.close(read_end)
    assert running.communicate()[1] == ""
    assert running.returncode == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_before_the_last_flush(unbuffered: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    running = process("print('one line')", stdout=write_end, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    os.close(write_end)
    assert running.communicate()[1] == ""
    assert running.returncode == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["print('one line')", "print('one line'); raise OSError(28, os.strerror(28))"])
def test_output_to_a_full_disk_is_an_error(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        running = process(command, stdout=full, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
        error = running.communicate()[1]
    assert running.returncode == 2
    assert error.startswith("error[os]: [Errno 28] No space left on device")
    assert "Traceback" not in error


def test_json_for_a_full_disk_is_an_error_for_people() -> None:
    with open("/dev/full", "w") as full:
        listing = subprocess.run(
            [sys.executable, "-m", "cli.main", "shapes", "--json", "tests/data/smollm2-135m/nothing"],
            cwd=ROOT, text=True, stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert listing.returncode == 2
    assert listing.stderr.startswith("error[")


@pytest.mark.parametrize(
    ("number", "code", "name"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_runs_finally_blocks_and_gives_its_code(number: int, code: int, name: str) -> None:
    running = process(
        """
try:
    print("ready", flush=True)
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
""",
        stdout=subprocess.PIPE,
    )
    assert running.stdout.readline() == "ready\n"
    running.send_signal(number)
    out, err = running.communicate()
    assert (running.returncode, out) == (code, "cleaned up\n")
    assert err.startswith(f"error[{name}]: ")
    assert "Traceback" not in err


def test_a_closed_stdout_is_survived() -> None:
    program = "import os; os.close(1); os.execv(%r, [%r, '-m', 'cli.main', '--version'])" % ((sys.executable,) * 2)
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in result.stderr


def test_the_module_can_be_run() -> None:
    result = subprocess.run([sys.executable, "-m", "cli.main", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)


def test_the_signal_handler_is_put_back_afterwards(command_that) -> None:
    before = signal.getsignal(signal.SIGTERM)
    command_that(lambda: None)
    run(["fake"])
    assert signal.getsignal(signal.SIGTERM) is before
