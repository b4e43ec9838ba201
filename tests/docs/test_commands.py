"""Each command line that the docs show is one that the commands take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import group as cli
from trainer.__main__ import group

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"graphcache": cli, "python -m cli.main": cli, "python -m trainer": group}
BLOCK = re.compile(r"^( *)```\w*[^\n]*\n(.*?)^\1```$|((?:^    \S.*\n)+)", re.MULTILINE | re.DOTALL)
LINE = re.compile(rf"^ *(?:\$ )?({'|'.join(map(re.escape, PROGRAMS))}) (.+)$")


def lines(page: Path) -> Iterator[tuple[str, str]]:
    """Program and arguments of each line that is whole: a form with [options] or an ellipsis is none."""
    for _, fenced, indented in BLOCK.findall(page.read_text()):
        for line in (fenced or indented).replace("\\\n", " ").splitlines():
            found = LINE.match(line)
            if found and not re.search(r"\.\.\.|\[|\||\{", found[2].split("#")[0]):
                yield found[1], found[2]


SHOWN = [pytest.param(*each, id=f"{page.name}: {' '.join(each)}") for page in PAGES for each in lines(page)]


def test_there_are_lines() -> None:
    assert len(SHOWN) > 60


@pytest.mark.parametrize(("program", "arguments"), SHOWN)
def test_a_line_can_be_typed(program: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.sub(r" >\S+", "", arguments), comments=True)
    # A letter stands for a number, a name for a file that has to be there.
    words = ["1" if re.fullmatch("[A-Z]", word) else word.replace("DEVICES", "2") for word in words]
    for word in words:
        if re.fullmatch(r"[\w.]+", word):
            Path(word).touch()
    context = click.Context(PROGRAMS[program], info_name=program)
    name, command, rest = PROGRAMS[program].resolve_command(context, words)
    assert command is not None, words
    command.make_context(name, list(rest), parent=context)
