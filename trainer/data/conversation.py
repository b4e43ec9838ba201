"""A conversation as a chat template takes it, and the forms of a record that hold one.

`messages`; ShareGPT's `conversations` of `from` and `value`; Alpaca's `instruction`, `input` and `output`; `prompt` and
`completion` that are lists of messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphcache.strict_json import DuplicateKeyError, strict_loads
from trainer.data.errors import DataError

# Who speaks in ShareGPT's records, and the role that this is for templates.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
REASONING = ("reasoning_content", "thinking", "reasoning")
# What transformers' `apply_chat_template` takes by these names itself.
_TAKEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
# What a message may have beside its role: written by templates, or of no meaning for what is trained.
_WRITTEN = ("role", "content", "tool_calls", *REASONING)
_BOOKKEEPING = frozenset({"name", "tool_call_id", "id", "type", "timestamp", "date"})


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What a template is given.

    messages: roles and contents, with `tool_calls` and reasoning where there are any; no value is None
    trained:  for each message, whether it is the assistant's and counts
    tools, documents, options: as `apply_chat_template` takes them: options are the template's own variables
    """

    messages: Sequence[Mapping[str, Any]]
    trained: Sequence[bool]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def of_messages(where: str, record: Mapping[str, Any], ignored: frozenset[str], known: str) -> Conversation:
    """From `messages`. known: the template's source; fields of messages that it names are given to it.

    Raises DataError, with `where` before the fact.
    """
    return _conversation(where, record, record["messages"], ignored, known)


def of_sharegpt(where: str, record: Mapping[str, Any], ignored: frozenset[str], known: str) -> Conversation:
    """From `conversations`, a list of `from` and `value`, with `system` beside it. Raises DataError."""
    turns = record["conversations"]
    if isinstance(turns, list) and all(isinstance(turn, dict) and "role" in turn for turn in turns):
        return _conversation(where, record, turns, ignored, known)  # the name of one form, and the content of another
    if not isinstance(turns, list):
        raise DataError(f"{where}: conversations is not a list of turns")
    messages = [_sharegpt_message(f"{where}: turn {i}", turn) for i, turn in enumerate(turns)]
    system = _optional_text(where, record, "system", ignored)
    if system:
        if any(message["role"] == "system" for message in messages):
            raise DataError(f"{where}: has system twice, as a turn and beside the conversation")
        messages.insert(0, {"role": "system", "content": system})
    return _conversation(where, record, messages, ignored, known)


def of_alpaca(where: str, record: Mapping[str, Any], ignored: frozenset[str], known: str) -> Conversation:
    """From `instruction`, `input` and `output`: a question, what it is about (a blank line between), an answer.

    Raises DataError.
    """
    texts = {name: _text(where, record, name) for name in ("instruction", "output")}
    about = _optional_text(where, record, "input", ignored)
    system = _optional_text(where, record, "system", ignored)
    question = "\n\n".join(filter(None, (texts["instruction"], about)))
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": texts["output"]}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return _conversation(where, record, messages, ignored, known)


def of_pair(where: str, record: Mapping[str, Any], ignored: frozenset[str], known: str) -> Conversation:
    """From `prompt` and `completion`, both lists of messages: only those of the completion count. Raises DataError."""
    prompt, completion = record["prompt"], record.get("completion")
    if not isinstance(completion, list):
        raise DataError(f"{where}: prompt is a list of messages, and completion is not")
    found = _conversation(where, record, [*prompt, *completion], ignored, known)
    trained = [counts and i >= len(prompt) for i, counts in enumerate(found.trained)]
    return Conversation(
        messages=found.messages, trained=trained, tools=found.tools, documents=found.documents, options=found.options
    )


def _conversation(
    where: str, record: Mapping[str, Any], messages: Any, ignored: frozenset[str], known: str
) -> Conversation:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages is not a list of at least one message")
    given = {name: record.get(name) for name in ("tools", "documents", "chat_template_kwargs") if name not in ignored}
    places = [f"{where}: message {i}" for i in range(len(messages))]
    return Conversation(
        messages=[_message(place, message, ignored, known) for place, message in zip(places, messages, strict=True)],
        trained=[_is_trained(place, message, ignored) for place, message in zip(places, messages, strict=True)],
        tools=_objects(where, "tools", given.get("tools")),
        documents=_objects(where, "documents", given.get("documents")),
        options=_options(where, given.get("chat_template_kwargs")),
    )


def _message(where: str, message: Any, ignored: frozenset[str], known: str) -> dict[str, Any]:
    """The message without what has no value, and without what says whether it counts."""
    calls = isinstance(message, dict) and bool(message.get("tool_calls"))
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not (calls or "content" in message):
        raise DataError(f"{where} is not an object with a role and a content")
    _check_role(where, message["role"])
    found = {
        name: value
        for name, value in message.items()
        if value is not None and name not in ("weight", "train") and name not in ignored
    }
    other = [
        name
        for name, value in found.items()
        if name not in _WRITTEN
        and name not in _BOOKKEEPING
        and value not in ("", [], {})
        and not re.search(rf"\b{re.escape(name)}\b", known)
    ]
    if other:
        raise DataError(f"{where} has {', '.join(sorted(other))}, which is not read", hint=_ignore_hint(other))
    content = message.get("content")
    if not (calls and content is None) and not isinstance(content, str) and not _is_text_parts(content):
        kind = "null" if content is None else f"a {type(content).__name__}"
        raise DataError(
            f"{where} has {kind} for its content, not text",
            hint='content is text, or a list of {"type": "text", "text": "..."}',
        )
    for name in REASONING:
        if name in found and not isinstance(found[name], str):
            raise DataError(f"{where}: {name} is a {type(found[name]).__name__}, not text")
    if calls:
        found["tool_calls"] = _calls(where, found.get("tool_calls", message["tool_calls"]))
    return found


def _check_role(where: str, role: str) -> None:
    """Turns that the assistant has under another name would not be trained. Raises DataError."""
    meant = SHAREGPT_ROLES.get(role.lower(), role)
    if meant != role and (meant == "assistant" or role != role.lower()):
        raise DataError(f"{where} has the role {role!r}", hint=f"write {meant!r}, as chat templates have it")


def _ignore_hint(names: Sequence[str]) -> str:
    return f"take it out of the data, or ignore it: --ignore-fields {','.join(sorted(names))}"


def _is_trained(where: str, message: Mapping[str, Any], ignored: frozenset[str]) -> bool:
    """By `weight` (0 or 1, as OpenAI has it) or `train` of the message; else whether it is the assistant's."""
    wanted = set()
    for name in ("weight", "train"):
        value = message.get(name)
        if value is None or name in ignored:
            continue
        if value not in (0, 1) or not isinstance(value, int | float):
            raise DataError(f"{where}: {name} is {value!r}, and only 0 and 1 (false and true) are understood")
        wanted.add(bool(value))
    if len(wanted) > 1:
        raise DataError(f"{where}: weight and train disagree")
    if message["role"] != "assistant" and True in wanted:
        raise DataError(f"{where} is to count, and only turns of the assistant can, not of {message['role']}")
    return message["role"] == "assistant" and False not in wanted


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    """Tool calls whose arguments are objects: APIs give them as JSON text, which a template would encode once more."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DataError(f"{where}: tool_calls is not a list of objects")
    found = []
    for call in calls:
        if "function" not in call and "name" in call:
            call = {"type": "function", "function": call}
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(f"{where}: a tool call has no function with a name")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _decoded(f"{where}: arguments of {function['name']}", arguments) if arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise DataError(f"{where}: arguments of {function['name']} are a {type(arguments).__name__}, not an object")
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def _objects(where: str, name: str, value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, str):
        value = _decoded(f"{where}: {name}", value) if value.strip() else None
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError(f"{where}: {name} is not a list of objects")
    return value


def _options(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _decoded(f"{where}: chat_template_kwargs", value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{where}: chat_template_kwargs is a {type(value).__name__}, not an object")
    taken = sorted(_TAKEN & value.keys())
    if taken:
        raise DataError(f"{where}: chat_template_kwargs gives {', '.join(taken)}, which is no variable of a template")
    return value


def _decoded(where: str, text: str) -> Any:
    try:
        return strict_loads(text, constants=True)
    except DuplicateKeyError as error:
        raise DataError(f"{where}: {error}", hint="keep one of the two: the other would not be trained on") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is text that is not JSON: {error}") from error


def _sharegpt_message(where: str, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or "value" not in turn:
        raise DataError(f"{where} is not an object with from and value")
    role = SHAREGPT_ROLES.get(turn["from"])
    if role is None:
        raise DataError(f"{where} is from {turn['from']!r}", hint=f"from is one of {', '.join(SHAREGPT_ROLES)}")
    rest = {name: value for name, value in turn.items() if name not in ("from", "value")}
    if turn["from"] == "function_call":
        calls = (
            _decoded(f"{where}: a function_call", turn["value"]) if isinstance(turn["value"], str) else turn["value"]
        )
        return {**rest, "role": role, "tool_calls": calls if isinstance(calls, list) else [calls]}
    return {**rest, "role": role, "content": turn["value"]}


def _text(where: str, record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is {'missing' if value is None else f'a {type(value).__name__}, not text'}")
    return value


def _optional_text(where: str, record: Mapping[str, Any], name: str, ignored: frozenset[str]) -> str:
    return "" if name in ignored or record.get(name) is None else _text(where, record, name)


def _is_text_parts(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(_is_text_part(part) for part in content)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
