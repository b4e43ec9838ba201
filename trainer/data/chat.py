"""A checkpoint's own chat template, rendered by transformers, which is what templates are written for.

Contents are given to a template as it takes them, which is found out by trying: as text, or as a list of parts. A
template that takes only one of them would write the other as Python shows it, or leave it out, without a word. So it is
with the arguments of tool calls: objects, as transformers says, or JSON text for templates that join it to other text;
and with a turn that has calls and no content: some templates know it by a content that is None, others write "None".

A template that asks for the date always gets TEMPLATE_DATE: tokens must not depend on the day. transformers is imported
when something is first rendered.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

from trainer.data.conversation import Conversation
from trainer.data.errors import ChatTemplateError

# What Llama 3's templates write where there is no clock.
TEMPLATE_DATE = datetime.date(2024, 7, 26)
PROBE = "probe"
NO_TEMPLATE = "the checkpoint has no chat template"


class ChatTemplate:
    """Renders conversations. Made without a template too: then only rendering fails."""

    def __init__(self, source: str | Mapping[str, str] | None, special_tokens: Mapping[str, Any]) -> None:
        """source: one template, or several by name; special_tokens: what it may name: `{"bos_token": "<s>", ...}`."""
        self._sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._variables = dict(special_tokens)
        self.tells_date = False  # whether a template has asked for the date so far

    @property
    def source(self) -> str:
        """All templates' text, to look for names in."""
        return "\n".join(self._sources.values())

    @property
    def is_marked(self) -> bool:
        """Whether the template itself marks what the assistant wrote, by `{% generation %}`."""
        return "endgeneration" in self.source

    def as_taken(self, conversation: Conversation) -> list[dict[str, Any]]:
        """The messages in the form that the template takes. Raises ChatTemplateError when it refuses every form."""
        messages = [self._with_content(message) for message in conversation.messages]
        names = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
        if not names:
            return messages
        refusal, taken = None, None
        for form in _forms_of_calls(messages):
            try:
                text = self.render(form, conversation)
            except ChatTemplateError as error:
                refusal = refusal or error
                continue
            if all(name in text for name in names):
                return form
            taken = taken or form
        if taken is None:
            assert refusal is not None
            raise refusal
        return taken

    def render(
        self, messages: Sequence[Mapping[str, Any]], conversation: Conversation | None = None, *, prompt: bool = False
    ) -> str:
        """The messages' text, with the tools, documents and options of `conversation`. Raises ChatTemplateError.

        prompt: ask the assistant to answer
        """
        return self._rendered(messages, conversation, prompt=prompt, marks=False)[0]

    def render_marked(
        self, messages: Sequence[Mapping[str, Any]], conversation: Conversation
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text, and the (begin, end) of each part that the template marks by `{% generation %}`."""
        return self._rendered(messages, conversation, prompt=False, marks=True)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], conversation: Conversation | None, *, prompt: bool, marks: bool
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        import jinja2

        tools = conversation.tools if conversation else None
        source = self._source(tools)
        try:
            renderer = _renderer()
            _Clock.looked_at = False
            with _clock_in(renderer):
                texts, found = renderer.render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    documents=conversation.documents if conversation else None,
                    chat_template=source,
                    return_assistant_tokens_mask=marks,
                    add_generation_prompt=prompt,
                    **{**self._variables, **(conversation.options if conversation else {})},
                )
        except ChatTemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template has a fault in line {error.lineno}: {error.message}") from error
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses the conversation: {error}") from error
        except Exception as error:  # it is a program of its own, and may fail as any program
            raise ChatTemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error
        self.tells_date = self.tells_date or _Clock.looked_at
        return texts[0], tuple((begin, end) for begin, end in found[0]) if marks else ()

    def _source(self, tools: object) -> str:
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            others = f", only {', '.join(sorted(self._sources))}" if self._sources else ""
            raise ChatTemplateError(
                f"{NO_TEMPLATE}{others and ' called default'}{others}",
                hint="it is in tokenizer_config.json or chat_template.jinja",
            )
        return self._sources[name]

    def _with_content(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, list) and not self._takes_parts:
            return {**message, "content": "".join(part["text"] for part in content)}
        if isinstance(content, str) and not self._takes_text and self._takes_parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        return dict(message)

    @cached_property
    def _takes_text(self) -> bool:
        return self._writes(PROBE)

    @cached_property
    def _takes_parts(self) -> bool:
        return self._writes([{"type": "text", "text": PROBE}])

    def _writes(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the probe is in what the template writes, by itself and not within a list shown as Python or JSON."""
        try:
            text = self.render([{"role": "user", "content": content}])
        except ChatTemplateError:
            return False
        as_list = isinstance(content, list) and (str(content) in text or json.dumps(content) in text)
        return PROBE in text and not as_list


def _forms_of_calls(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for form in (messages, [_with_text_arguments(message) for message in messages]):
        yield form
        yield [{"content": None, **message} if message.get("tool_calls") else message for message in form]


def _with_text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_json(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Clock(datetime.datetime):
    """Shows TEMPLATE_DATE, and whether it was looked at."""

    looked_at = False

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Clock:
        _Clock.looked_at = True
        return cls(TEMPLATE_DATE.year, TEMPLATE_DATE.month, TEMPLATE_DATE.day, tzinfo=tz)


@cache
def _renderer() -> Any:
    """The module that renders. Raises ChatTemplateError when its clock cannot be held still."""
    from transformers.utils import chat_template_utils

    with _clock_in(chat_template_utils):
        shown = chat_template_utils.render_jinja_template([[]], chat_template="{{ strftime_now('%Y-%m-%d') }}")[0][0]
    if shown != TEMPLATE_DATE.isoformat():
        raise ChatTemplateError(
            "this version of transformers does not let the date of chat templates be set",
            hint="install the version that the trainer extra names",
        )
    return chat_template_utils


@contextmanager
def _clock_in(module: Any) -> Iterator[None]:
    """Inside the block the module's `datetime` is our clock. It takes `datetime.now()` and nothing else from it.

    Templates cannot be given a function of ours: transformers hands them plain values only, for safety.
    """
    before, module.datetime = module.datetime, _Clock
    try:
        yield
    finally:
        module.datetime = before
