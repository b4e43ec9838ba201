"""Which characters of a rendered conversation the assistant wrote.

Where the template marks them with `{% generation %}`, these. Else what the template adds to the conversation so far
when asked to answer: rendering `messages[:i]` with the generation prompt begins it, rendering `messages[:i + 1]` ends
it. An answer includes what ends the turn, and never the header of the next, which some templates write at once.

How the template frames an answer is learned once, from a conversation of two words (`Frame`); where that holds, one
rendering is enough: the nth header begins the nth answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trainer.data.chat import ChatTemplate
from trainer.data.conversation import Conversation
from trainer.data.errors import ChatTemplateError

Spans = tuple[tuple[int, int], ...]
# Letters that no template writes.
_ASKED, _ANSWERED, _ASKED_AGAIN = "\ue001asked", "\ue002answered", "\ue003again"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a template writes around an answer.

    prompt:  before it, when asked to answer; empty where nothing is written only then
    header:  what of that is before every answer: a prompt may begin a thought, which earlier answers do not have
    tail:    after it, at the end of a conversation; ending: the part of it that ends the turn, with no next header
    middle:  what ends the turn where more follows
    stop:    the special token that ends the turn, empty without one
    """

    prompt: str
    header: str
    tail: str
    ending: str
    middle: str
    stop: str


class TurnFinder:
    """Finds answers in what one template writes."""

    def __init__(self, template: ChatTemplate, special: Sequence[str]) -> None:
        """special: all added tokens of the tokenizer, as text."""
        self.template = template
        texts = sorted(filter(None, special), key=len, reverse=True)
        self._special = frozenset(texts)
        # Special tokens and lines, so that two texts are compared by whole ones.
        self._pieces = re.compile("|".join([*map(re.escape, texts), r"[^\S\n]*\n", r"[^\n]"]))
        self._frames: dict[tuple[str, bool], Frame | None] = {}
        self.never_stops = False  # whether an answer without an end of turn was written so far

    def render(self, conversation: Conversation, *, fast: bool = True) -> tuple[str, Spans]:
        """The whole conversation, and the (begin, end) of each answer that is trained, in characters.

        fast: use what was learned about the template where it holds. Raises ChatTemplateError.
        """
        template = self.template
        messages = template.as_taken(conversation)
        if template.is_marked:
            return self._marked(messages, conversation)
        text = template.render(messages, conversation)
        frame = self._frame(conversation)
        self.never_stops = self.never_stops or (frame is not None and not frame.stop)
        spans = _by_frame(text, messages, frame) if fast and frame else None
        if spans is None:
            spans = [
                self._by_prefix(text, messages, i, conversation, frame)
                for i, counts in enumerate(conversation.trained)
                if counts
            ]
            return text, tuple(spans)
        answers = (i for i, message in enumerate(messages) if message["role"] == "assistant")
        return text, tuple(span for i, span in zip(answers, spans, strict=True) if conversation.trained[i])

    def _marked(self, messages: Sequence[Mapping[str, Any]], conversation: Conversation) -> tuple[str, Spans]:
        """By the template's own marks: those of a turn are what it has more than the conversation before it."""
        text, spans = self.template.render_marked(messages, conversation)
        if not any(end > begin for begin, end in spans) and any(conversation.trained):
            raise ChatTemplateError("the chat template marks parts by {% generation %}, and none in this conversation")
        spans = tuple((begin, end) for begin, end in spans if end > begin)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        left_out: set[tuple[int, int]] = set()
        for i in answers:
            if conversation.trained[i]:
                continue
            if len(spans) == len(answers):
                own = {spans[answers.index(i)]}
            else:
                before = self.template.render_marked(messages[:i], conversation)[1] if i else ()
                own = {*self.template.render_marked(messages[: i + 1], conversation)[1]} & {*spans} - {*before}
            if not own:
                raise _untellable(i)
            left_out |= own
        self.never_stops = self.never_stops or not self._ends_by_special(text, spans)
        return text, tuple(span for span in spans if span not in left_out)

    def _ends_by_special(self, text: str, spans: Spans) -> bool:
        return all(any(s in text[begin:end] for s in self._special) for begin, end in spans)

    def _by_prefix(
        self,
        text: str,
        messages: Sequence[Mapping[str, Any]],
        i: int,
        conversation: Conversation,
        frame: Frame | None,
    ) -> tuple[int, int]:
        begin = self._begin(text, messages, i, conversation)
        if frame and frame.prompt.strip() and text.startswith(frame.prompt, begin):
            begin += len(frame.prompt)  # not written when asked to answer here, after a tool perhaps
        last = i == len(messages) - 1
        after = text if last else self.template.render(messages[: i + 1], conversation)
        tail, ending = (frame.tail, frame.ending if last else frame.middle) if frame else ("", "")
        if not after.endswith(tail):  # a call may end in a way of its own, but for the next header
            tail, ending = tail.removeprefix(frame.ending if frame else ""), ""
        wrote = after.removesuffix(tail) + ending if tail else after
        end = _common(text, wrote)
        if end < len(wrote.rstrip()) or end < begin:
            raise _untellable(i)
        return begin, end

    def _begin(self, text: str, messages: Sequence[Mapping[str, Any]], i: int, conversation: Conversation) -> int:
        """Where answer i begins."""
        if i == 0:
            # Many templates cannot write no turn at all. What does not depend on the answer is before it.
            answered = self.template.as_taken(
                Conversation(messages=[{"role": "assistant", "content": _ANSWERED}], trained=())
            )
            return _common(text, self.template.render([*answered, *messages[1:]], conversation))
        asked = self.template.render(messages[:i], conversation, prompt=True)
        if text.startswith(asked):
            return len(asked)
        # A prompt may begin an answer in a way of its own (an empty thought): what is before that is the header.
        history = self.template.render(messages[:i], conversation)
        if not text.startswith(history) or not asked.startswith(history):
            raise _untellable(i)
        wrote, prompt = (self._split(whole[len(history) :]) for whole in (text, asked))
        return len(history) + len("".join(_shared(wrote, prompt)))

    def _frame(self, conversation: Conversation) -> Frame | None:
        """None where the template writes no such conversation, or not as it is."""
        key = repr(sorted(conversation.options.items())) if conversation.options else "", bool(conversation.tools)
        if key not in self._frames:
            self._frames[key] = self._learned(conversation)
        return self._frames[key]

    def _learned(self, conversation: Conversation) -> Frame | None:
        given = Conversation(
            messages=(),
            trained=(),
            tools=conversation.tools,
            documents=conversation.documents,
            options=conversation.options,
        )
        parts = [("user", _ASKED), ("assistant", _ANSWERED), ("user", _ASKED_AGAIN)]
        probe = Conversation(messages=[{"role": role, "content": text} for role, text in parts], trained=())
        try:
            turns = self.template.as_taken(probe)
            history, asked = (self.template.render(turns[:1], given, prompt=prompt) for prompt in (False, True))
            answered, more = self.template.render(turns[:2], given), self.template.render(turns, given)
        except ChatTemplateError:
            return None
        if answered.count(_ANSWERED) != 1 or more.count(_ANSWERED) != 1 or more.count(_ASKED_AGAIN) != 1:
            return None
        tail, between = answered.split(_ANSWERED)[1], more.split(_ANSWERED)[1].split(_ASKED_AGAIN)[0]
        opening, before = self._split(history.split(_ASKED)[0]), self._split(history)
        # A conversation that is not to go on may be closed by an end of text.
        shared = _shared(before, self._split(asked))
        if any(piece not in self._special for piece in before[len(shared) :]):
            return None
        asking = frozenset(self._split(asked.split(_ASKED)[1]))
        prompt, written = (whole[len("".join(shared)) :] for whole in (asked, more.split(_ANSWERED)[0]))
        return self._framed(prompt, written, self._split(tail), self._split(between), opening, asking)

    def _framed(
        self, prompt: str, written: str, tail: list[str], between: list[str], opening: list[str], asking: frozenset[str]
    ) -> Frame:
        """From what asks for an answer and is written before one where more follows, what follows an answer at the end,
        and where more follows, what opens a conversation and asks for an answer."""
        middle = _shared(tail, between)
        ending = tail
        openers = set(takewhile(self._special.__contains__, opening))
        if not prompt and self._is_header(tail[len(middle) :], asking):
            # Headers may begin alike.
            ending = middle = list(takewhile(lambda piece: piece not in openers, middle))
        elif not any(piece in self._special for piece in middle):
            middle = self._other_end(between, openers) or middle
        stop = next((piece for piece in ending if piece in self._special), "")
        header = "".join(_shared(self._split(prompt), self._split(written)))
        return Frame(
            prompt=prompt,
            header=header,
            tail="".join(tail),
            ending="".join(ending),
            middle="".join(middle),
            stop=stop,
        )

    def _other_end(self, between: list[str], openers: set[str]) -> list[str]:
        """Up to the first special token, where it ends a turn: what opens the next one follows it."""
        at = next((i for i, piece in enumerate(between) if piece in self._special), len(between))
        ends = at < len(between) and between[at] not in openers and any(p in openers for p in between[at + 1 :])
        return between[: at + 1] if ends else []

    def _is_header(self, rest: list[str], asking: frozenset[str]) -> bool:
        """Whether what a conversation ends with, after the turn's end, asks for an answer: it is more than an end."""
        return any(piece in asking if piece in self._special else piece.strip() for piece in rest)

    def _split(self, text: str) -> list[str]:
        return self._pieces.findall(text)


def _by_frame(text: str, messages: Sequence[Mapping[str, Any]], frame: Frame) -> list[tuple[int, int]] | None:
    """All answers, where the template writes as many headers as there are answers, and each is ended."""
    if not frame.header.strip() or not frame.stop or frame.ending != frame.tail:
        return None
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    begins = list(_ends_of(frame.header, text))
    if len(begins) != len(answers) or any(frame.stop in text for i in answers for text in _texts(messages[i])):
        return None
    spans = []
    for i, begin, following in zip(answers, begins, [*begins, len(text)][1:], strict=True):
        if text.startswith(frame.prompt, begin - len(frame.header)):
            begin += len(frame.prompt) - len(frame.header)
        # The first one after the header, since no answer holds one.
        ending = frame.tail if i == len(messages) - 1 else frame.middle
        at = text.find(frame.stop, begin) - ending.find(frame.stop)
        end = at + len(ending)
        if frame.stop not in ending or at < begin or end > following or not text.startswith(ending, at):
            return None
        spans.append((begin, end))
    if answers and answers[-1] == len(messages) - 1 and spans[-1][1] != len(text):
        return None
    return spans


def _ends_of(part: str, text: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at + len(part)
        at = text.find(part, at + len(part))


def _texts(value: Any) -> Iterator[str]:
    """All texts in a message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _shared(one: list[str], other: list[str]) -> list[str]:
    """The pieces that both begin with."""
    return [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def _common(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _untellable(i: int) -> ChatTemplateError:
    return ChatTemplateError(
        f"the chat template writes message {i} in another way when more follows, so that the assistant's part cannot be"
        " told",
        hint='give the conversation as prompt and completion, or set "train": false on that message',
    )
