"""Long texts in blocks whose tokens are those of the whole.

The library keeps some hundred bytes a token while it works, and works on one text with one CPU. A block ends with a
line, and the next line begins with a character that is no space: no tokenizer joins these two. But many look at what
stands beside, so a block is tokenized with the newline before it and the characters behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding

BLOCK_CHARS = 1 << 20
BEFORE = "\n"
AFTER_CHARS = 64  # one, and if it begins a special token all of that
_LINE = re.compile(r"\n(?=\S)")


@dataclass(frozen=True)
class TextBlock:
    """A part of a text. begins: it is the first one; after: the AFTER_CHARS that follow, empty for the last one."""

    text: str
    begins: bool
    after: str


def blocks(text: str) -> Iterator[TextBlock]:
    """A text in blocks of about BLOCK_CHARS characters."""
    begin = 0
    while True:
        line = _LINE.search(text, begin + BLOCK_CHARS)
        end = line.end() if line else len(text)
        yield TextBlock(text[begin:end], begin == 0, text[end : end + AFTER_CHARS])
        if line is None:
            return
        begin = end


def last_cut(text: str, begin: int) -> int:
    """Where a block may end last in `text`, of which there is more, if that is behind `begin`; else 0."""
    end = len(text) - AFTER_CHARS
    while end > begin and (end := text.rfind("\n", begin, end)) >= 0:
        if not text[end + 1].isspace():
            return end + 1
    return 0


def first_token(encoding: Encoding, char: int) -> int:
    """The first token that begins at this character or behind it."""
    token = encoding.char_to_token(char)
    if token is None:  # the character is in no token
        starts = (start for start, _ in encoding.offsets)
        token = next((i for i, start in enumerate(starts) if start >= char), len(encoding.ids))
    return token
