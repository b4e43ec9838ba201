"""Whether what a record says is in what is trained. Templates leave out what they do not know, without a word.

Texts are compared without their white space, which templates trim and indent, and as JSON has them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.data.conversation import REASONING, Conversation
from trainer.data.errors import DataError

_THOUGHT = re.compile(r"</?think>")
_SPLIT = 'give each answer a record of its own, or set "train": false on this one'
_IGNORE = "use a template that writes it, or ignore it: --ignore-fields {}"


def check_written(conversation: Conversation, text: str, spans: Sequence[tuple[int, int]]) -> None:
    """Raises DataError for what the conversation says and `text`, or of a trained turn the `spans` in it, do not."""
    whole, counted = _Text(text), _Text("\n".join(text[begin:end] for begin, end in spans))
    for i, (message, trained) in enumerate(zip(conversation.messages, conversation.trained, strict=True)):
        where = counted if trained else whole
        for name, value in _said(message):
            if not where.holds(value):
                raise _left_out(i, name, value, trained=trained, written=whole.holds(value))
    for tool in conversation.tools or ():
        function = tool.get("function")
        name = (function if isinstance(function, Mapping) else tool).get("name", "")
        if not whole.holds(name):
            raise DataError(f"the chat template leaves out the tool {name}", hint=_IGNORE.format("tools"))
    for document in conversation.documents or ():
        for value in _leaves(document):
            if not whole.holds(value):
                raise DataError("the chat template leaves out documents", hint=_IGNORE.format("documents"))


def _left_out(i: int, name: str, value: Any, *, trained: bool, written: bool) -> DataError:
    shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
    verb = "does not mark" if trained and written else "leaves out"
    return DataError(f"the chat template {verb} {name} of message {i}: {shown}", hint=_hint(name, trained))


def _hint(name: str, trained: bool) -> str:
    if name in REASONING or name == "the thought":
        return f"the template drops it from earlier answers: {_SPLIT}" if trained else _IGNORE.format(name)
    if name == "tool_calls":
        return "the template knows no tools: use one that does"
    return "the template knows no such turn: use one that does, or take it out of the data"


def _said(message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value that a template should write, with what it is called."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    for part in parts:
        # A thought within the content is another thing to templates, and often left out.
        has_thought = message["role"] == "assistant" and "think>" in part
        *thoughts, said = _THOUGHT.split(part) if has_thought else [part]
        for thought in thoughts:
            yield "the thought", thought
        yield "content", said
    for name in REASONING:
        if name in message:
            yield name, message[name]
    for call in message.get("tool_calls", ()):
        yield "tool_calls", call["function"]["name"]
        for value in _leaves(call["function"]["arguments"], keys=True):
            yield "tool_calls", value


def _leaves(value: Any, *, keys: bool = False) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if keys:
                yield key
            yield from _leaves(item, keys=keys)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, keys=keys)
    else:
        yield value


class _Text:
    """A text that is searched."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._squeezed: str | None = None

    def holds(self, value: Any) -> bool:
        """Whether the value is in it, as text or as JSON or Python write it."""
        if isinstance(value, str):
            return value in self._text or any(form in self._narrow() for form in _forms(value))
        return any(form in self._text for form in (json.dumps(value), str(value), repr(value)))

    def _narrow(self) -> str:
        if self._squeezed is None:
            self._squeezed = _squeeze(self._text)
        return self._squeezed


def _forms(value: str) -> Iterator[str]:
    yield _squeeze(value)
    yield _squeeze(json.dumps(value, ensure_ascii=False)[1:-1])
    yield _squeeze(json.dumps(value)[1:-1])
    yield _squeeze(repr(value)[1:-1])


def _squeeze(text: str) -> str:
    return "".join(text.split())
