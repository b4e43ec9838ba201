"""A checkpoint's own chat template, and which characters of a rendered conversation the assistant wrote.

The assistant's part of a turn is what the template adds to the conversation so far, asked to answer: rendering
`messages[:i]` with the generation prompt must be a prefix of rendering `messages[:i + 1]`, and the rest is the answer
with its end-of-turn token. No date is given to templates, so that tokens do not depend on the day.

Contents are given to a template as it takes them, which is found out by trying: as text, or as a list of parts. A
template that takes only one of them would write the other as Python shows it, or leave it out, without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from graphcache.errors import GraphcacheError

PROBE = "probe"


class ChatTemplateError(GraphcacheError):
    """The template is missing, is not a template, or refuses a conversation."""

    name = "chat-template"


class ChatTemplate:
    """Renders conversations. Made without a template too: then only `render` fails."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: what the template may name: `{"bos_token": "<s>", ...}`."""
        self.source = source
        self._variables = dict(special_tokens)
        self._template = None if source is None else _compiled(source)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The whole conversation, and the (begin, end) of each of the assistant's answers in it, in characters.

        Contents are texts, lists of text parts, or None, each in whichever form the template takes.
        """
        messages = [{**message, "content": self._as_taken(message["content"])} for message in messages]
        text = self._render(messages, prompt=False)
        spans = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:i], prompt=True)
            after = self._render(messages[: i + 1], prompt=False)
            if not after.startswith(before) or not text.startswith(after.rstrip()):
                raise ChatTemplateError(
                    f"the chat template writes message {i} in another way when more follows, so that the assistant's"
                    " part cannot be told",
                    hint="give the conversation as prompt and completion",
                )
            spans.append((len(before), min(len(after), len(text))))
        return text, tuple(spans)

    def _as_taken(self, content: Any) -> Any:
        if isinstance(content, list) and not self._takes_parts:
            return "".join(part["text"] for part in content)
        if isinstance(content, str) and self._takes_parts and not self._takes_text:
            return [{"type": "text", "text": content}]
        return content

    @cached_property
    def _takes_text(self) -> bool:
        return self._writes(PROBE)

    @cached_property
    def _takes_parts(self) -> bool:
        return self._writes([{"type": "text", "text": PROBE}])

    def _writes(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the probe is in what the template writes, by itself and not within a list shown as Python or JSON."""
        try:
            text = self._render([{"role": "user", "content": content}], prompt=False)
        except ChatTemplateError:
            return False
        as_list = isinstance(content, list) and (str(content) in text or json.dumps(content) in text)
        return PROBE in text and not as_list

    def _render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        if self._template is None:
            raise ChatTemplateError(
                "the checkpoint has no chat template", hint="it is in tokenizer_config.json or chat_template.jinja"
            )
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **self._variables)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses the conversation: {error}") from error
        except Exception as error:  # it is a program of its own, and may fail as any program
            raise ChatTemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error


def read_template(model: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's source: chat_template.jinja beside the weights, else what tokenizer_config.json holds.

    None without either. Raises ChatTemplateError when the file cannot be read.
    """
    path = model / "chat_template.jinja"
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ChatTemplateError(f"{path} cannot be read as UTF-8: {error}") from error
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    return found if isinstance(found, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for other trainers: here its body, as it is."""

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_Generation.tags = {"generation"}


def _compiled(source: str) -> jinja2.Template:
    """The template, in a sandbox: it comes with the checkpoint, from whoever made that."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the chat template has a fault in line {error.lineno}: {error.message}") from error
    except Exception as error:  # blocks in blocks without end: too deep for jinja, or for Python
        raise ChatTemplateError(f"the chat template is no program: {type(error).__name__}: {error}") from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As `transformers` renders it: jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
