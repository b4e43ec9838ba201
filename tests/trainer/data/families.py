"""Small chat templates with the traits of published ones, written for these tests.

«G» and «E» stand around what the assistant writes: nothing in the template that is tried, `{% generation %}` marks in
its twin, whose masks transformers gives. A family's conversations are those that it can hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.tiny import byte_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the weather is, é <b> \"quoted\"",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


def turns(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


def called(city: str, **more: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city, "days": 3}}
    return {"role": "assistant", "tool_calls": [{"id": "abc123def", "type": "function", "function": function}], **more}


ONE = {"messages": turns(("user", "Who are you?"), ("assistant", "A machine — é 你好."))}
MANY = {"messages": turns(("user", "hi"), ("assistant", "hello"), ("user", "hi"), ("assistant", "hello\n\n  again"))}
SYSTEM = {"messages": turns(("system", "Be brief."), *((m["role"], m["content"]) for m in MANY["messages"]))}
UNANSWERED = {"messages": MANY["messages"][:3]}
TOOLS = {
    "tools": [TOOL],
    "messages": [
        *turns(("user", "Weather in Zürich?")),
        called("Zürich"),
        {"role": "tool", "name": "weather", "content": '{"sky": "clear"}', "tool_call_id": "abc123def"},
        *turns(("assistant", "It is clear."), ("user", "thanks"), ("assistant", "You are welcome.")),
    ],
}
REASONED = {
    "messages": [
        *turns(("user", "2+2?")),
        {"role": "assistant", "content": "4", "reasoning_content": "Two and two\nare four."},
    ]
}
REASONED_LAST = {
    "messages": [
        *turns(("user", "hi"), ("assistant", "<b>hello</b>"), ("user", "2+2?")),
        {"role": "assistant", "content": "4", "reasoning_content": "Two and two\nare four."},
    ]
}
REASONED_CALLS = {
    "tools": [TOOL],
    "messages": [
        *turns(("user", "hi"), ("assistant", "hello"), ("user", "Weather in Zürich?")),
        called("Zürich", reasoning_content="I should ask."),
        {"role": "tool", "name": "weather", "content": "clear", "tool_call_id": "abc123def"},
        {"role": "assistant", "content": "It is clear.", "reasoning_content": "The tool says so."},
    ],
}
PLAIN = (ONE, MANY, SYSTEM, UNANSWERED)


@dataclass(frozen=True)
class Family:
    template: str
    special: tuple[str, ...]
    records: tuple[dict[str, Any], ...] = PLAIN
    bos: str | None = None
    eos: str = "</s>"
    never_stops: bool = False

    @property
    def plain(self) -> str:
        return self.template.replace("«G»", "").replace("«E»", "")

    @property
    def marked(self) -> str:
        return self.template.replace("«G»", "{%- generation -%}").replace("«E»", "{%- endgeneration -%}")

    def write(self, folder: Path, template: str | None = None) -> Path:
        """A checkpoint's tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens(sorted({self.eos, *self.special, *([self.bos] if self.bos else [])}))
        tokenizer.save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eos}
        settings |= {"chat_template": template or self.plain} | ({"bos_token": self.bos} if self.bos else {})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        return folder


_CALLS = (
    "{%- for call in m.tool_calls -%}"
    "{{- '<tool_call>\\n' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson"
    " + '\\n</tool_call>' -}}{%- endfor -%}"
)
_CHATML = "{{- '<|im_start|>' + m.role + '\\n' -}}"
# Of another turn than the assistant's, where what a tool gives is the user's.
_TOOL_AS_USER = (
    "{%- if m.role == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content"
    " + '\\n</tool_response><|im_end|>\\n' -}}{%- else -%}"
    + _CHATML
    + "{{- m.content + '<|im_end|>\\n' -}}{%- endif -%}"
)
_ASK = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
_LLAMA3 = "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' -}}"
_ASK3 = "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
_DATE = (
    "{%- if not date_string is defined -%}{%- if strftime_now is defined -%}"
    "{%- set date_string = strftime_now('%d %b %Y') -%}{%- else -%}{%- set date_string = '26 Jul 2024' -%}{%- endif -%}"
    "{%- endif -%}{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n\\n' -}}"
)
_IM = ("<|im_start|>", "<|im_end|>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_LAST_QUERY = (
    "{%- set ns = namespace(last=0) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)


def _loop(user: str, assistant: str, before: str = "", after: str = "") -> str:
    return (
        before
        + "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
        + assistant
        + "{%- else -%}"
        + user
        + "{%- endif -%}{%- endfor -%}"
        + after
    )


FAMILIES = {
    "chatml": Family(
        _loop(
            _CHATML + "{{- m.content + '<|im_end|>\\n' -}}",
            _CHATML + "«G»{{- m.content + '<|im_end|>\\n' -}}«E»",
            "{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' -}}{%- endif -%}",
            _ASK,
        ),
        _IM,
        bos="<|im_start|>",
        eos="<|im_end|>",
    ),
    "llama-2": Family(
        "{%- if messages[0].role == 'system' -%}{%- set rest = messages[1:] -%}{%- set system = messages[0].content -%}"
        "{%- else -%}{%- set rest = messages -%}{%- set system = false -%}{%- endif -%}"
        "{%- for m in rest -%}{%- if m.role == 'user' -%}{{- bos_token + '[INST] ' -}}"
        "{%- if loop.first and system -%}{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' -}}{%- endif -%}"
        "{{- m.content | trim + ' [/INST]' -}}"
        "{%- else -%}«G»{{- ' ' + m.content | trim + ' ' + eos_token -}}«E»{%- endif -%}{%- endfor -%}",
        (),
        bos="<s>",
    ),
    "llama-3": Family(
        _loop(
            _LLAMA3 + "{{- m.content | trim + '<|eot_id|>' -}}",
            _LLAMA3 + "«G»{{- m.content | trim + '<|eot_id|>' -}}«E»",
            "{{- bos_token -}}",
            _ASK3,
        ),
        _HEADERS,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    "llama-3.1": Family(
        "{{- bos_token -}}" + _DATE + "{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim -}}"
        "{%- set messages = messages[1:] -%}{%- endif -%}{{- '<|eot_id|>' -}}"
        + _loop(
            "{%- if m.role == 'tool' -%}{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + m.content | tojson"
            " + '<|eot_id|>' -}}{%- else -%}"
            + _LLAMA3
            + "{%- if tools and loop.first -%}"
            "{%- for t in tools -%}{{- t | tojson(indent=4) + '\\n\\n' -}}{%- endfor -%}"
            "{%- endif -%}{{- m.content | trim + '<|eot_id|>' -}}{%- endif -%}",
            _LLAMA3 + "«G»{%- if 'tool_calls' in m -%}{%- if m.tool_calls | length != 1 -%}"
            "{{- raise_exception('one call at a time') -}}{%- endif -%}"
            "{{- '{\"name\": \"' + m.tool_calls[0].function.name + '\", \"parameters\": '"
            " + m.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' -}}"
            "{%- else -%}{{- m.content | trim + '<|eot_id|>' -}}{%- endif -%}«E»",
        )
        + _ASK3,
        _HEADERS,
        (*PLAIN, TOOLS),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    "llama-4": Family(
        _loop(
            "{{- '<|header_start|>' + m.role + '<|header_end|>\\n\\n' -}}"
            "{%- if m.content is string -%}{{- m.content -}}"
            "{%- else -%}{%- for p in m.content -%}{{- p.text -}}{%- endfor -%}{%- endif -%}{{- '<|eot|>' -}}",
            "{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}«G»{%- if m.content is string -%}{{- m.content -}}"
            "{%- else -%}{%- for p in m.content -%}{{- p.text -}}{%- endfor -%}{%- endif -%}{{- '<|eot|>' -}}«E»",
            "{{- bos_token -}}",
            "{%- if add_generation_prompt -%}{{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}{%- endif -%}",
        ),
        ("<|header_start|>", "<|header_end|>", "<|eot|>"),
        bos="<|begin_of_text|>",
        eos="<|eot|>",
    ),
    "qwen-2.5": Family(
        _loop(
            "{%- if m.role == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content"
            " + '\\n</tool_response><|im_end|>\\n' -}}"
            "{%- elif not (tools and loop.first and m.role == 'system') -%}"
            + _CHATML
            + "{{- m.content + '<|im_end|>\\n' -}}{%- endif -%}",
            _CHATML + "«G»{%- if m.content -%}{{- m.content -}}{%- endif -%}" + _CALLS + "{{- '<|im_end|>\\n' -}}«E»",
            "{%- if tools -%}{{- '<|im_start|>system\\n' -}}{%- if messages[0].role == 'system' -%}"
            "{{- messages[0].content -}}{%- endif -%}{%- for t in tools -%}{{- '\\n' + t | tojson -}}{%- endfor -%}"
            "{{- '<|im_end|>\\n' -}}{%- endif -%}",
            _ASK,
        ),
        _IM,
        (*PLAIN, TOOLS),
        eos="<|im_end|>",
    ),
    "qwen-3": Family(
        _LAST_QUERY
        + _loop(
            _TOOL_AS_USER,
            _CHATML + "«G»{%- set thought = m.reasoning_content if m.reasoning_content is string else '' -%}"
            "{%- if loop.index0 > ns.last and (loop.last or thought) -%}"
            "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' -}}{%- endif -%}"
            "{%- if m.content -%}{{- m.content.lstrip('\\n') -}}{%- endif -%}" + _CALLS + "{{- '<|im_end|>\\n' -}}«E»",
            "{%- if tools -%}{{- '<|im_start|>system\\n' -}}{%- for t in tools -%}{{- '\\n' + t | tojson -}}"
            "{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}",
            _ASK,
        ),
        (*_IM, "<think>", "</think>"),
        (*PLAIN, TOOLS, REASONED, REASONED_LAST, REASONED_CALLS),
        eos="<|im_end|>",
    ),
    "qwen-3.5": Family(
        _LAST_QUERY
        + _loop(
            _TOOL_AS_USER,
            _CHATML + "{%- set thought = m.reasoning_content if m.reasoning_content is string else '' -%}"
            "{%- if loop.index0 > ns.last -%}{{- '<think>\\n' -}}{%- endif -%}"
            "«G»{%- if loop.index0 > ns.last -%}{{- thought.strip('\\n') + '\\n</think>\\n\\n' -}}{%- endif -%}"
            "{%- if m.content -%}{{- m.content -}}{%- endif -%}"
            "{%- for call in m.tool_calls -%}{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' -}}"
            "{%- for key, value in call.function.arguments.items() -%}{{- '<parameter=' + key + '>\\n' -}}"
            "{{- value if value is string else value | tojson -}}{{- '\\n</parameter>\\n' -}}{%- endfor -%}"
            "{{- '</function>\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}«E»",
            "{%- if tools -%}{{- '<|im_start|>system\\n' -}}{%- for t in tools -%}{{- '\\n' + t | tojson -}}"
            "{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}",
            "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}",
        ),
        (*_IM, "<think>", "</think>"),
        (*PLAIN, TOOLS, REASONED, REASONED_LAST, REASONED_CALLS),
        eos="<|im_end|>",
    ),
    "deepseek-v3": Family(
        "{{- bos_token -}}{%- set ns = namespace(tool=false) -%}{%- for m in messages -%}"
        "{%- if m.role == 'system' -%}{{- m.content -}}"
        "{%- elif m.role == 'user' -%}{%- set ns.tool = false -%}{{- '<User>' + m.content -}}"
        "{%- elif m.role == 'tool' -%}{%- set ns.tool = true -%}{{- '<outputs>' + m.content + '<endoutputs>' -}}"
        "{%- elif m.content is none -%}{{- '<Assistant>' -}}«G»{{- '<calls>' -}}{%- for call in m.tool_calls -%}"
        "{{- call.function.name + '\\n' + call.function.arguments + '\\n' -}}{%- endfor -%}"
        "{{- '<endcalls>' + eos_token -}}«E»"
        "{%- else -%}{%- if not ns.tool -%}{{- '<Assistant>' -}}{%- endif -%}{%- set ns.tool = false -%}"
        "«G»{{- m.content + eos_token -}}«E»{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt and not ns.tool -%}{{- '<Assistant>' -}}{%- endif -%}",
        ("<User>", "<Assistant>", "<calls>", "<endcalls>", "<outputs>", "<endoutputs>"),
        bos="<begin>",
        eos="<end>",
    ),
    "mistral-1": Family(
        "{{- bos_token -}}{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
        "{{- raise_exception('roles must alternate user/assistant') -}}{%- endif -%}"
        "{%- if m.role == 'user' -%}{{- '[INST] ' + m.content + ' [/INST]' -}}"
        "{%- else -%}«G»{{- m.content + eos_token -}}«E»{%- endif -%}{%- endfor -%}",
        (),
        (ONE, MANY, UNANSWERED),
        bos="<s>",
    ),
    "mistral-3": Family(
        "{{- bos_token -}}{%- for m in messages -%}{%- if m.role == 'user' -%}"
        "{%- if tools and loop.first -%}"
        "{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}"
        "{{- '[INST] ' + m.content + '[/INST]' -}}"
        "{%- elif m.role == 'tool' -%}{{- '[TOOL_RESULTS] {\"content\": ' + m.content | string + ', \"call_id\": \"'"
        " + m.tool_call_id + '\"}[/TOOL_RESULTS]' -}}"
        "{%- elif m.tool_calls is defined -%}«G»{{- '[TOOL_CALLS] [' -}}{%- for c in m.tool_calls -%}"
        "{{- c.function | tojson -}}{%- endfor -%}{{- ']' + eos_token -}}«E»"
        "{%- else -%}«G»{{- ' ' + m.content + eos_token -}}«E»{%- endif -%}{%- endfor -%}",
        ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
        (ONE, MANY, UNANSWERED, TOOLS),
        bos="<s>",
    ),
    "gemma": Family(
        "{{- bos_token -}}{%- if messages[0].role == 'system' -%}{{- raise_exception('no system turn') -}}{%- endif -%}"
        + _loop(
            "{{- '<start_of_turn>' + m.role + '\\n' + m.content | trim + '<end_of_turn>\\n' -}}",
            "{{- '<start_of_turn>model\\n' -}}«G»{{- m.content | trim + '<end_of_turn>\\n' -}}«E»",
            "",
            "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}",
        ),
        ("<start_of_turn>", "<end_of_turn>"),
        (ONE, MANY, UNANSWERED),
        bos="<bos>",
        eos="<eos>",
    ),
    "phi-3": Family(
        _loop(
            "{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' -}}",
            "{{- '<|assistant|>\\n' -}}«G»{{- m.content + '<|end|>\\n' -}}«E»",
            "",
            "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- elif messages[-1].role == 'assistant' -%}"
            "«G»{{- eos_token -}}«E»{%- else -%}{{- eos_token -}}{%- endif -%}",
        ),
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        eos="<|endoftext|>",
    ),
    "phi-4": Family(
        _loop(
            "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}",
            "{{- '<|im_start|>assistant<|im_sep|>' -}}«G»{{- m.content + '<|im_end|>' -}}«E»",
            "",
            "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}",
        ),
        (*_IM, "<|im_sep|>"),
        eos="<|im_end|>",
    ),
    "smollm-3": Family(
        _loop(
            "{%- if not (loop.first and m.role == 'system') -%}"
            + _CHATML
            + "{{- m.content + '<|im_end|>\\n' -}}{%- endif -%}",
            _CHATML + "«G»{%- if m.reasoning_content -%}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n' -}}"
            "{%- endif -%}{{- m.content + '<|im_end|>\\n' -}}«E»",
            "{%- set thinking = enable_thinking if enable_thinking is defined else true -%}"
            "{{- '<|im_start|>system\\nDate: ' + strftime_now('%d %B %Y') + '\\nMode: '"
            " + ('/think' if thinking else '/no_think') + '\\n' -}}"
            "{%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}{{- '<|im_end|>\\n' -}}",
            _ASK,
        ),
        _IM,
        (*PLAIN, REASONED, ONE | {"chat_template_kwargs": {"enable_thinking": False}}),
        eos="<|im_end|>",
    ),
    "zephyr": Family(
        _loop(
            "{{- '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' -}}",
            "{{- '<|assistant|>\\n' -}}«G»{{- m.content + eos_token + '\\n' -}}«E»",
            "",
            "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}",
        ),
        (),
    ),
    "deepseek-v2": Family(
        _loop(
            "{%- if m.role == 'user' -%}{{- 'User: ' + m.content + '\\n\\n' -}}"
            "{%- else -%}{{- m.content + '\\n\\n' -}}{%- endif -%}",
            "{{- 'Assistant:' -}}«G»{{- ' ' + m.content + eos_token -}}«E»",
            "{{- bos_token -}}",
            "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}",
        ),
        (),
        bos="<begin>",
        eos="<end>",
    ),
    "deepseek-r1": Family(
        _loop(
            "{%- if m.role == 'user' -%}{{- '<User>' + m.content -}}{%- else -%}{{- m.content -}}{%- endif -%}",
            "{{- '<Assistant>' -}}«G»{%- set said = m.content -%}{%- if '</think>' in said -%}"
            "{%- set said = said.split('</think>')[-1] -%}{%- endif -%}{{- said + eos_token -}}«E»",
            "{{- bos_token -}}",
            "{%- if add_generation_prompt -%}{{- '<Assistant><think>\\n' -}}{%- endif -%}",
        ),
        ("<User>", "<Assistant>"),
        bos="<begin>",
        eos="<end>",
    ),
    "granite": Family(
        _loop(
            "{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' -}}",
            "{{- '<|start_of_role|>assistant<|end_of_role|>' -}}«G»{{- m.content + '<|end_of_text|>\\n' -}}«E»",
            "{%- if messages[0].role != 'system' -%}{{- '<|start_of_role|>system<|end_of_role|>Today is '"
            " + strftime_now('%B %d, %Y') + '<|end_of_text|>\\n' -}}{%- endif -%}",
            "{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}",
        ),
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        eos="<|end_of_text|>",
    ),
    "olmo": Family(
        _loop(
            "{{- '<|' + m.role + '|>\\n' + m.content + '\\n' -}}",
            "{{- '<|assistant|>\\n' -}}«G»{{- m.content + eos_token -}}«E»"
            "{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}",
            "{{- bos_token -}}",
            "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}",
        ),
        (),
        bos="<|endoftext|>",
        eos="<|endoftext|>",
    ),
    "command-r": Family(
        _loop(
            "{{- '<|START|><|' + m.role | upper + '|>' + m.content | trim + '<|END|>' -}}",
            "{{- '<|START|><|ASSISTANT|>' -}}«G»{{- m.content | trim + '<|END|>' -}}«E»",
            "{{- bos_token -}}",
            "{%- if add_generation_prompt -%}{{- '<|START|><|ASSISTANT|>' -}}{%- endif -%}",
        ),
        ("<|START|>", "<|END|>", "<|USER|>", "<|ASSISTANT|>", "<|SYSTEM|>"),
        bos="<BOS>",
        eos="<|END|>",
    ),
    "gpt-oss": Family(
        _loop(
            "{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}",
            "{{- '<|start|>assistant' -}}«G»{{- '<|channel|>final<|message|>' + m.content -}}"
            "{%- if loop.last -%}{{- '<|return|>' -}}{%- else -%}{{- '<|end|>' -}}{%- endif -%}«E»",
            "{{- '<|start|>system<|message|>Today is ' + strftime_now('%Y-%m-%d') + '<|end|>' -}}",
            "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}",
        ),
        ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
        eos="<|return|>",
    ),
    "always a header": Family(
        _loop(
            _CHATML + "{{- m.content + '<|im_end|>\\n' -}}",
            _CHATML + "«G»{{- m.content + '<|im_end|>\\n' -}}«E»",
            "",
            "{{- '<|im_start|>assistant\\n' -}}",
        ),
        _IM,
        eos="<|im_end|>",
    ),
    "always a header, no end": Family(
        _loop(
            "{{- '<|' + m.role + '|>\\n' + m.content + '\\n' -}}",
            "{{- '<|assistant|>\\n' -}}«G»{{- m.content + '\\n' -}}«E»",
            "",
            "{{- '<|assistant|>\\n' -}}",
        ),
        ("<|system|>", "<|user|>", "<|assistant|>"),
        never_stops=True,
    ),
    "no end": Family(
        _loop(
            "{{- '### ' + m.role + ':\\n' + m.content + '\\n\\n' -}}",
            "{{- '### assistant:\\n' -}}«G»{{- m.content + '\\n\\n' -}}«E»",
            "",
            "{%- if add_generation_prompt -%}{{- '### assistant:\\n' -}}{%- endif -%}",
        ),
        (),
        never_stops=True,
    ),
}  # fmt: skip
